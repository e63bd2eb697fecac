package kit

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// bench is an Executor that carries slices out when the test lets it.
type bench struct {
	Executor[bench]
	transport.Sink
	down    bool // guarded by mu, like the fields below
	mu      sync.Mutex
	changed *sync.Cond
	carried []uint64
	gate    map[uint64]chan struct{} // of slices that stop inside
	inside  map[uint64]bool
	ends    map[uint64]transport.Completion
	readies int
}

func newBench(t *testing.T, n int) *bench {
	b := newIdleBench()
	b.Start(n, b, b.isUp, b.carry)
	t.Cleanup(b.Stop)
	return b
}

// newIdleBench returns a bench that was not started.
func newIdleBench() *bench {
	b := &bench{gate: map[uint64]chan struct{}{}, inside: map[uint64]bool{}, ends: map[uint64]transport.Completion{}}
	b.changed = sync.NewCond(&b.mu)
	return b
}

func (*bench) isUp(b *bench, _ transport.Rail) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.down
}

// here is the only link.
func (b *bench) here(transport.Link) *bench { return b }

func (b *bench) carry(s *transport.Slice, _ *bench) *errs.Error {
	b.mu.Lock()
	b.carried = append(b.carried, s.Id)
	b.inside[s.Id] = true
	gate := b.gate[s.Id]
	b.changed.Broadcast()
	b.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return nil
}

func (b *bench) Complete(list []transport.Completion) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range list {
		b.ends[c.Slice.Id] = c
	}
	b.changed.Broadcast()
}

func (b *bench) Ready(transport.Rail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readies++
	b.changed.Broadcast()
}

func (b *bench) await(cond func() bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !cond() {
		b.changed.Wait()
	}
}

// hold lets the worker stop inside slice 1 and returns a function that lets it go on.
func (b *bench) hold(t *testing.T) (release func()) {
	gate := make(chan struct{})
	b.gate[1] = gate
	require.Equal(t, 1, b.Accept(slicesOf(1), b.here))
	b.await(func() bool { return b.inside[1] })
	return func() { close(gate) }
}

func slicesOf(ids ...uint64) (list []*transport.Slice) {
	for _, id := range ids {
		list = append(list, &transport.Slice{Id: id, Length: 10, Class: uint8(id / 100)})
	}
	return list
}

func TestTheMostUrgentSliceIsNext(t *testing.T) {
	b := newBench(t, 16)
	release := b.hold(t)
	require.Equal(t, 5, b.Accept(slicesOf(200, 100, 2, 300, 3), b.here))
	release()
	b.await(func() bool { return len(b.ends) == 6 })
	require.Equal(t, []uint64{1, 2, 3, 100, 200, 300}, b.carried)
	require.Equal(t, uint64(10), b.ends[300].Bytes)
}

func TestAWaiterCarriesOutWhatTheWorkerLeavesUntilArm(t *testing.T) {
	b := newBench(t, 16)
	require.Zero(t, b.Poll(1, transport.AllClasses))
	require.Equal(t, 3, b.Accept(slicesOf(1, 2, 3), b.here))
	require.Equal(t, 2, b.Poll(2, transport.AllClasses))
	require.Len(t, b.ends, 2, "the worker sleeps")
	b.Arm()
	b.await(func() bool { return len(b.ends) == 3 })
}

func TestDroppedSlicesAreNotCarriedOut(t *testing.T) {
	b := newBench(t, 16)
	release := b.hold(t)
	b.Accept(slicesOf(2, 3), b.here)
	require.Equal(t, []Begun[bench]{{Length: 10, Link: b}}, b.Begun())
	cause := errs.New(errs.Withdrawn, "x", "asked back")
	b.Drop(cause, func(s *transport.Slice, of *bench) bool { return of == b && s.Id != 3 })
	require.Same(t, cause, b.ends[2].Err)
	require.Zero(t, b.ends[2].Bytes)
	release()
	b.await(func() bool { return len(b.ends) == 3 })
	require.Equal(t, []uint64{1, 3}, b.carried)
	require.Nil(t, b.ends[1].Err, "it was under way")
}

func TestEvictWaitsForWhatIsUnderWay(t *testing.T) {
	b := newBench(t, 16)
	release := b.hold(t)
	b.Accept(slicesOf(2), b.here)
	evicted := make(chan struct{})
	go func() {
		b.Evict(errs.New(errs.Withdrawn, "x", "asked back"), func(*transport.Slice, *bench) bool { return true })
		close(evicted)
	}()
	b.await(func() bool { return b.ends[2].Err != nil })
	select {
	case <-evicted:
		t.Fatal("slice 1 is still under way")
	default:
	}
	release()
	<-evicted
	b.await(func() bool { return b.ends[1].Slice != nil })
}

func TestAFullExecutorTakesAPrefixAndOwesReady(t *testing.T) {
	b := newBench(t, 2)
	release := b.hold(t)
	require.Equal(t, 1, b.Accept(slicesOf(2, 3), b.here))
	require.Zero(t, b.Accept(nil, b.here))
	release()
	b.await(func() bool { return b.readies == 1 && len(b.ends) == 2 })
	b.mu.Lock()
	b.down = true
	b.mu.Unlock()
	require.Zero(t, b.Accept(slicesOf(4), b.here), "the rail is down")
}

func TestADoorShutsForAllOrForOnePeer(t *testing.T) {
	var d Door
	seven, eight := &transport.Peer{ID: transport.NumberedID(7)}, &transport.Peer{ID: transport.NumberedID(8)}
	answers := func(epoch transport.Epoch, one, other Answer) {
		t.Helper()
		require.Equal(t, one, d.Admits(seven.ID, epoch), "peer 7 in epoch %d", epoch)
		require.Equal(t, other, d.Admits(eight.ID, epoch), "peer 8 in epoch %d", epoch)
	}
	answers(0, DoorOpen, DoorOpen)
	d.Shut(seven, 3)
	answers(2, DoorFenced, DoorOpen)
	answers(3, DoorOpen, DoorOpen)
	d.Shut(nil, 5)
	d.Shut(nil, 4) // two fences at once may come in any order
	answers(4, DoorFenced, DoorFenced)
	answers(5, DoorOpen, DoorOpen)
	epoch, was := d.Alone(seven.ID)
	require.True(t, was)
	require.EqualValues(t, 3, epoch)
	_, was = d.Alone(eight.ID)
	require.False(t, was)
	require.Len(t, *d.some.Load(), 1)
	d.Shut(eight, 5)
	require.Len(t, *d.some.Load(), 1, "the fence of all holds for peer 7, too")
	answers(4, DoorFenced, DoorFenced)
	d.Shut(seven, transport.ForGood)
	d.Shut(seven, 9)
	answers(^transport.ForGood, DoorClosed, DoorOpen)
	epoch, was = d.Alone(seven.ID)
	require.True(t, was)
	require.Equal(t, transport.ForGood, epoch)
	d.Shut(nil, 20)
	d.Shut(&transport.Peer{ID: transport.NumberedID(9)}, 21)
	answers(^transport.ForGood, DoorClosed, DoorOpen) // later fences open it to nobody
	d.Shut(eight, 22)
	d.Shut(nil, transport.ForGood)
	answers(^transport.ForGood, DoorClosed, DoorClosed)
}

// global does not move, as memory that a user registers does not.
var global [8]byte

func TestCopyMovesBothWaysAndComparesSums(t *testing.T) {
	here, there := global[:4], global[4:8]
	copy(global[:], "hereabcd")
	address := func(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
	s := &transport.Slice{Op: transport.Write, Local: address(here), Remote: 1, Length: 2, Checked: true}
	require.Equal(t, errs.OK, codeOfCopy(s, address(there)))
	require.Equal(t, "ahed", string(there))
	s.Op = transport.Read
	there[1] = 'X'
	require.Equal(t, errs.OK, codeOfCopy(s, address(there)))
	require.Equal(t, "Xere", string(here))
	over := &transport.Slice{Op: transport.Write, Local: address(here), Remote: 1, Length: 3, Checked: true}
	require.Equal(t, errs.Corrupted, codeOfCopy(over, address(here)), "the destination overlaps its source")
}

func codeOfCopy(s *transport.Slice, remote uintptr) errs.Code {
	code, _ := Copy(s, remote)
	return code
}
