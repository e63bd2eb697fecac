package services

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/meta/names"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
)

const size = 1 << 16

// start opens an engine that moves bytes by tcp alone.
func start(settings map[string]any) (*engine.Engine, error) {
	settings["transports/shm/enable"] = false
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings)
	if err != nil {
		return nil, err
	}
	return engine.Open(context.Background(), engine.Options{Config: c, Transports: engine.Plugs(all.Factories()...)})
}

func open(t *testing.T, settings map[string]any) *engine.Engine {
	t.Helper()
	e, err := start(settings)
	require.NoError(t, err)
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func closeEngine(t *testing.T, e *engine.Engine) {
	t.Helper()
	require.Empty(t, e.Close(patience, true))
	require.NoError(t, e.Forget())
}

func offer(t *testing.T, e *engine.Engine, name string) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	m := engine.Memory{Addr: uintptr(unsafe.Pointer(&b[0])), Size: size, Name: name, Location: mem.Wildcard}
	if name != "" {
		m.Permission = mem.GlobalReadWrite
	}
	_, err = e.Register(m)
	require.NoError(t, err)
	return b
}

// traffic are writes from one engine to another without a pause, each with other bytes that are checked.
type traffic struct {
	t    *testing.T
	done chan int // numbers of writes that were whole
	end  chan error
}

func run(t *testing.T, from *engine.Engine, to engine.SegmentID, source, target []byte) *traffic {
	tr := &traffic{t, make(chan int), make(chan error, 1)}
	stop := make(chan struct{})
	go func() {
		for k := 1; ; k++ {
			for i := range source {
				source[i] = byte(i*7 + i>>8*13 + k)
			}
			batch, err := from.Move(&engine.Request{Terms: request.Terms{Op: transport.Write},
				Source: uintptr(unsafe.Pointer(&source[0])), Length: size, Remote: engine.Remote{Segment: to}})
			if err == nil && from.Wait(batch, patience) != dispatch.Completed {
				err = fmt.Errorf("write %d ended otherwise", k)
			}
			if err == nil && !bytes.Equal(source, target) {
				err = fmt.Errorf("write %d arrived with other bytes", k)
			}
			if err == nil {
				err = from.FreeBatch(batch)
			}
			if err != nil {
				tr.end <- err
				return
			}
			select {
			case tr.done <- k:
			case <-stop:
				tr.end <- nil
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		require.NoError(t, <-tr.end)
	})
	return tr
}

// goesOn checks that further writes are whole.
func (tr *traffic) goesOn() {
	tr.t.Helper()
	for range 20 {
		select {
		case <-tr.done:
		case err := <-tr.end:
			tr.end <- nil
			require.NoError(tr.t, err)
		case <-time.After(patience):
			tr.t.Fatal("transfers stand still")
		}
	}
}

func opens(t *testing.T, e *engine.Engine, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := e.OpenWith(ctx, name, engine.OpenOptions{Wait: true})
	require.NoError(t, err)
	require.NoError(t, e.CloseSegment(s))
}

// unanswered checks that an open by name fails within its limit and says that the service does not answer, while an
// open by address works.
func unanswered(t *testing.T, e *engine.Engine, s *service, peer string) {
	t.Helper()
	began := time.Now()
	_, err := e.OpenSegment(t.Context(), "decode-0")
	require.Equal(t, errs.MetadataError, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, s.address)
	require.Less(t, time.Since(began), 4*limit, "an open waits no longer than metadata_timeout")
	t.Logf("%s: %v", s.kind, err)
	opens(t, e, peer)
}

func eachKind(t *testing.T, test func(*testing.T, string)) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// Transfers go on whatever the service does, and a name is there again as soon as it can be.
func TestTransfersGoOnWithoutTheService(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		s := newService(t, kind, "", "")
		owner, asker := open(t, s.settings("decode-0")), open(t, s.settings(""))
		kv, source := offer(t, owner, "kv"), offer(t, asker, "")
		to, err := asker.OpenSegment(t.Context(), "decode-0/kv")
		require.NoError(t, err)
		moves := run(t, asker, to, source, kv)
		moves.goesOn()
		_, err = asker.OpenSegment(t.Context(), "decode-1")
		require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)

		heard := follow(t, owner)
		s.stop()
		unanswered(t, asker, s, owner.Address())
		moves.goesOn()
		heard(event.NameLost)
		s.resume()
		heard(event.NameBack)
		opens(t, asker, "decode-0/kv")

		s.kill()
		unanswered(t, asker, s, owner.Address())
		moves.goesOn()
		s.start()
		opens(t, asker, "decode-0/kv")
		s.kill()
		s.wipe()
		s.start()
		opens(t, asker, "decode-0/kv")
		moves.goesOn()
	})
}

// follow returns a wait for events of a kind.
func follow(t *testing.T, e *engine.Engine) func(event.Kind) {
	id, err := e.Follow()
	require.NoError(t, err)
	t.Cleanup(func() { e.Unfollow(id) })
	return func(kind event.Kind) {
		t.Helper()
		require.Eventually(t, func() bool {
			list, _, err := e.Events(id, 1024)
			require.NoError(t, err)
			for _, each := range list {
				if each.Kind == kind {
					return true
				}
			}
			return false
		}, patience, 10*time.Millisecond, "no event %v", kind)
	}
}

// Entries of engines that died lead to an error at once, and are in nobody's way.
func TestAServiceFullOfStaleEntries(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		s := newService(t, kind, "", "")
		client := s.client(t)
		for i := range 500 {
			entry := fmt.Sprintf(`{"format":1,"address":"127.0.0.1:1","id":"%032x","network":"%s"}`, i, meta.NetworkID())
			done, err := client.Swap(t.Context(), fmt.Sprintf("tent/engines/dead-%d", i), nil, []byte(entry), time.Hour)
			require.NoError(t, err)
			require.True(t, done)
		}
		owner, asker := open(t, s.settings("decode-0")), open(t, s.settings(""))
		offer(t, owner, "kv")
		opens(t, asker, "decode-0/kv")
		_, err := asker.OpenSegment(t.Context(), "dead-7")
		require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err), "%v", err)
		open(t, s.settings("dead-7"))
		opens(t, asker, "dead-7")
	})
}

// client is one of the service without an engine.
func (s *service) client(t *testing.T) names.Service {
	t.Helper()
	var c names.Service
	var err error
	switch s.kind {
	case "etcd":
		c, err = names.NewEtcd([]string{s.address}, names.Access{}, patience)
	case "redis":
		c, err = names.NewRedis(s.address, names.Access{})
	default:
		c, err = names.NewHTTP("http://"+s.address+"/metadata", names.Access{})
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// An open that waits ends when the engine publishes its name and its region, and again when another one takes the name.
func TestAnEngineThatStartsLaterIsAwaited(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		s := newService(t, kind, "", "")
		asker := open(t, s.settings(""))
		opened := make(chan error, 1)
		wait := func(limit time.Duration) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			segment, err := asker.OpenWith(ctx, "late/kv", engine.OpenOptions{Wait: true})
			if err == nil {
				err = asker.CloseSegment(segment)
			}
			opened <- err
		}
		wait(limit)
		err := <-opened
		require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)
		for round := range 2 {
			go wait(patience)
			if round == 1 { // the wait goes on at a service that has forgotten everything
				s.kill()
				s.wipe()
				s.start()
			}
			owner, err := start(s.settings("late"))
			require.NoError(t, err)
			offer(t, owner, "kv")
			require.NoError(t, <-opened)
			closeEngine(t, owner)
		}
	})
}

// A name ends with its process: an open fails at once, and the entry goes with the lease.
func TestANameEndsWithItsProcess(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		s := newService(t, kind, "", "")
		asker := open(t, s.settings(""))
		process, released := child(t, "-role=engine", "-service="+kind,
			fmt.Sprintf("-servers=%v", s.settings("")["metadata_servers"]))
		opens(t, asker, "child")
		require.NoError(t, process.Process.Kill())
		released()
		_ = process.Wait()
		_, err := asker.OpenSegment(t.Context(), "child")
		require.Error(t, err)
		client := s.client(t)
		require.Eventually(t, func() bool {
			value, err := client.Get(t.Context(), "tent/engines/child")
			return err == nil && value == nil
		}, patience, 50*time.Millisecond, "the entry of a dead engine stays")
		_, err = asker.OpenSegment(t.Context(), "child")
		require.Equal(t, errs.InvalidEntry, errs.CodeOf(err), "%v", err)
	})
}
