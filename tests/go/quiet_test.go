package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// barrier makes a transfer of its own to the same peer and waits for it: all earlier messages have arrived then.
func barrier(t *testing.T, e *engine.Engine, at engine.SegmentID, own []byte) {
	t.Helper()
	for range 4 { // several lanes
		id, err := e.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own),
			Length: uint64(len(own)),
			Remote: engine.Remote{Segment: at}})
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, ended(t, e, id).State)
	}
}

func TestACanceledTransferNeverWritesAgain(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		const size = 8 << 20
		random := rand.New(rand.NewPCG(3, 3))
		here, there := w.open(t, nil), w.open(t, nil)
		source, destination, other, mark := memory(t, size), newGuarded(t, size), memory(t, 4096), memory(t, 4096)
		offer(t, here, source, "")
		offer(t, here, mark, "")
		offer(t, there, destination.bytes, "kv")
		offer(t, there, other, "mark")
		kv, aside := segment(t, here, there, "kv"), segment(t, here, there, "mark")
		states, runs := map[dispatch.State]int{}, 40
		if raceDetector { // eight megabytes a run are as many calls of it
			runs = 10
		}
		for k := range runs {
			fill(source, k)
			clear(destination.bytes)
			id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(source),
				Length: size,
				Remote: engine.Remote{Segment: kv}})
			require.NoError(t, err)
			for range random.IntN(30) {
				here.Progress()
			}
			_, err = here.Cancel(id, -1)
			require.NoError(t, err)
			sum := ended(t, here, id)
			require.False(t, sum.Dirty)
			states[sum.State]++
			if sum.State == dispatch.Completed {
				same(t, destination.bytes, k, 0)
			} else {
				require.Equal(t, dispatch.Canceled, sum.State, "%v", sum.Err)
			}
			before := append([]byte(nil), destination.bytes...)
			fill(source, 1000+k) // the source is ours again
			barrier(t, here, aside, mark)
			require.Equal(t, before, destination.bytes, "run %d: bytes landed after the end", k)
			destination.check(t)
		}
		t.Logf("seed 3: %v", states)
	})
}

func TestARegionThatWasClosedIsNotTouchedAnyMore(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		const size = 4 << 20
		here, there := w.open(t, nil), w.open(t, nil)
		source, other, mark := memory(t, size), memory(t, 4096), memory(t, 4096)
		fill(source, 1)
		offer(t, here, source, "")
		offer(t, here, mark, "")
		offer(t, there, other, "mark")
		aside := segment(t, here, there, "mark")
		for k := range 10 {
			destination := newGuarded(t, size)
			name := fmt.Sprintf("kv%d", k)
			region := offer(t, there, destination.bytes, name)
			kv := segment(t, here, there, name)
			var ids []dispatch.BatchID
			for range 4 {
				id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(source),
					Length: size,
					Remote: engine.Remote{Segment: kv}})
				require.NoError(t, err)
				ids = append(ids, id)
			}
			if k%2 == 1 {
				here.Progress()
			}
			require.NoError(t, there.CloseRegion(context.Background(), region))
			paint(destination.bytes, 0x77) // the owner uses its memory for something else
			for _, id := range ids {
				sum := ended(t, here, id)
				if sum.State != dispatch.Completed {
					require.Equal(t, dispatch.Failed, sum.State)
					require.Contains(t, []errs.Code{errs.AddressNotRegistered, errs.PermissionDenied,
						errs.StaleGeneration}, sum.Err.Code, "%v", sum.Err)
				}
			}
			barrier(t, here, aside, mark)
			require.True(t, painted(destination.bytes, 0x77), "round %d: written after the region was closed", k)
			destination.check(t)
			id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(source),
				Length: size,
				Remote: engine.Remote{Segment: kv}})
			if err == nil { // planned before the owner's news: its transport refuses
				sum := ended(t, here, id)
				require.Equal(t, dispatch.Failed, sum.State)
				err = sum.Err
			}
			require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err), "%v", err)
		}
	})
}

func TestManyThreadsPeersAndDirectionsAtOnce(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		const engines, threads, rounds, size = 3, 4, 25, 96 << 10
		var all []*engine.Engine
		for range engines {
			all = append(all, w.open(t, nil))
		}
		var wg sync.WaitGroup
		for i, e := range all {
			for j, peer := range all {
				for k := range threads {
					own, theirs := newGuarded(t, size), newGuarded(t, size)
					offer(t, e, own.bytes, "")
					name := fmt.Sprintf("from %d to %d thread %d", i, j, k)
					offer(t, peer, theirs.bytes, name)
					at := segment(t, e, peer, name)
					wg.Go(func() {
						random := rand.New(rand.NewPCG(uint64(i*100+j*10+k), 9))
						for round := range rounds {
							n := 1 + random.IntN(size)
							fill(own.bytes[:n], round)
							exchange(t, e, at, own.bytes[:n], transport.Write)
							clear(own.bytes)
							exchange(t, e, at, own.bytes[:n], transport.Read)
							same(t, own.bytes[:n], round, 0)
						}
						own.check(t)
						theirs.check(t)
					})
				}
			}
		}
		wg.Wait()
	})
}

func exchange(t *testing.T, e *engine.Engine, at engine.SegmentID, own []byte, op transport.Op) {
	id, err := e.Move(&engine.Request{Terms: engine.Terms{Op: op}, Source: address(own), Length: uint64(len(own)),
		Remote: engine.Remote{Segment: at}})
	if err != nil {
		t.Error(err)
		return
	}
	if state := e.Wait(id, patience); state != dispatch.Completed {
		sum, _ := e.Summary(id)
		t.Errorf("%s: %v", state, sum.Err)
	}
	if err := e.FreeBatch(id); err != nil {
		t.Error(err)
	}
}

func TestAHundredThousandPagesInOneCall(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		const pages, bytes = 100_000, 256
		here, there := w.open(t, nil), w.open(t, nil)
		source, destination := memory(t, pages*bytes), newGuarded(t, pages*bytes)
		fill(source, 5)
		offer(t, here, source, "")
		region := offer(t, there, destination.bytes, "kv")
		at := segment(t, here, there, "")
		own, _, err := here.NewGrid(engine.OwnMemory, []engine.GridRegion{{Addr: address(source),
			Size: pages * bytes}}, engine.Layout{PageBytes: bytes})
		require.NoError(t, err)
		theirs, n, err := here.NewGrid(at, []engine.GridRegion{{Region: region, Size: pages * bytes}},
			engine.Layout{PageBytes: bytes})
		require.NoError(t, err)
		require.Equal(t, pages, n)
		random := rand.New(rand.NewPCG(5, 5))
		from, to := make([]int64, pages), make([]int64, pages)
		for i, p := range random.Perm(pages) {
			from[i], to[i] = int64(i), int64(p)
		}
		id, err := here.Pages(engine.Terms{Op: transport.Write, Class: dispatch.Low}, &engine.Pages{Local: own,
			Remote: theirs,
			N:      pages, Src: engine.IndexesOf(from), Dst: engine.IndexesOf(to)}, nil)
		require.NoError(t, err)
		sum := ended(t, here, id)
		require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
		for i := range pages {
			same(t, destination.bytes[to[i]*bytes:(to[i]+1)*bytes], 5, i*bytes)
		}
		destination.check(t)
	})
}

func TestADeadlineEndsATransferInTime(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		own, theirs := memory(t, 4096), memory(t, 4096)
		offer(t, here, own, "")
		offer(t, there, theirs, "kv")
		id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write, Deadline: 1},
			Source: address(own), Length: 4096,
			Remote: engine.Remote{Segment: segment(t, here, there, "kv")}})
		require.NoError(t, err)
		sum := ended(t, here, id)
		require.Equal(t, dispatch.TimedOut, sum.State)
		require.Equal(t, errs.Timeout, sum.Err.Code)
	})
}

func TestAFullNotificationQueueHoldsTheSenderBackUntilItsLimit(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, map[string]any{"notification_queue": 4})
		at := segment(t, here, there, "")
		for i := range 4 {
			id, err := here.Notify(at, engine.Note{Name: []byte("n"), Message: fmt.Append(nil, i)}, 0)
			require.NoError(t, err)
			require.Equal(t, dispatch.Completed, ended(t, here, id).State)
		}
		held, err := here.Notify(at, engine.Note{Name: []byte("n"), Message: []byte("4")}, 0)
		require.NoError(t, err)
		require.Equal(t, dispatch.Pending, here.Wait(held, 30*time.Millisecond))
		read := 0
		there.NotesDrain(func(n *engine.Notification) bool {
			require.Equal(t, fmt.Sprint(read), string(n.Message))
			read++
			return true
		})
		require.Equal(t, 4, read)
		require.Equal(t, dispatch.Completed, ended(t, here, held).State)
		require.Equal(t, 1, there.NotesWait(patience))
	})
}
