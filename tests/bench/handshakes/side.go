package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/strangers"
	"github.com/tent-engine/tent/transports/all"
)

// act is a way to begin handshakes.
type act struct {
	name string
	held int // connections that stay open, the newest ones
	make func() (strangers.Flood, error)
}

const held = 300 // more than an engine takes

var acts = []act{
	{"a connection, and gone", 0, func() (strangers.Flood, error) { return strangers.Silent, nil }},
	{"first word only", held, strangers.FirstWord},
	{"first word, and gone", 0, strangers.FirstWord},
	{"whole handshakes", held, func() (strangers.Flood, error) { return strangers.Whole, nil }},
}

// Side is one process of the benchmark; its exported methods are called by the parent.
type Side struct {
	engine *engine.Engine
	moved  atomic.Int64
	begun  atomic.Int64
	failed atomic.Pointer[error]
}

const (
	limit  = time.Minute
	bytes  = 16 << 20 // of the region that the stream fills again and again
	piece  = 1 << 20
	flying = 4 // WRITEs under way
)

func (s *Side) open() (addr uintptr, err error) {
	given := map[string]any{"transports/shm/enable": false}
	c, err := config.Load(config.Options{Transports: all.Transports()}, given)
	if err != nil {
		return 0, err
	}
	options := engine.Options{Config: c, Transports: engine.Plugs(all.Factories()...)}
	if s.engine, err = engine.Open(context.Background(), options); err != nil {
		return 0, err
	}
	memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0, err
	}
	addr = mem.AddressOf(memory)
	_, err = s.engine.Register(engine.Memory{Addr: addr, Size: bytes, Name: "kv", Location: "cpu:0",
		Permission: mem.GlobalReadWrite})
	return addr, err
}

// Ends are the addresses that strangers attack, and to which the stream goes.
type Ends struct{ Attacked, Streamed string }

// Open opens the engine and returns its address, which is attacked, too.
func (s *Side) Open(_ forked.Nothing, at *Ends) error {
	_, err := s.open()
	if err == nil {
		*at = Ends{s.engine.Address(), s.engine.Address()}
	}
	return err
}

// Stream opens an engine that writes to another one until its process ends.
func (s *Side) Stream(to string, _ *forked.Nothing) error {
	addr, err := s.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	segment, err := s.engine.OpenSegment(ctx, to+"/kv")
	if err != nil {
		return err
	}
	for i := range flying {
		go s.write(addr, engine.Remote{Segment: segment}, i)
	}
	return nil
}

// write moves every flying-th piece of the region, again and again.
func (s *Side) write(addr uintptr, to engine.Remote, first int) {
	for at := first; ; at = (at + flying) % (bytes / piece) {
		to.Offset = uint64(at * piece)
		id, err := s.engine.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write},
			Source: addr + uintptr(at*piece), Remote: to, Length: piece})
		if err == nil {
			if state := s.engine.Wait(id, limit); state != dispatch.Completed {
				err = fmt.Errorf("the stream is %v", state)
			}
		}
		if err == nil {
			err = s.engine.FreeBatch(id)
		}
		if err != nil {
			s.failed.Store(&err)
			return
		}
		s.moved.Add(piece)
	}
}

// Moved returns the bytes of the stream so far.
func (s *Side) Moved(_ forked.Nothing, n *int64) error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	*n = s.moved.Load()
	return nil
}

// Attack names an attack.
type Attack struct{ Address, Act string }

// Attack begins handshakes from another host's address, on the first processor alone, until the process ends.
func (s *Side) Attack(a Attack, _ *forked.Nothing) error {
	for _, one := range acts {
		if one.name != a.Act {
			continue
		}
		flood, err := one.make()
		if err != nil {
			return err
		}
		if err := onOneProcessor(); err != nil {
			return err
		}
		go flood("127.0.0.2", a.Address, one.held, &s.begun, nil)
		return nil
	}
	return fmt.Errorf("no attack %q", a.Act)
}

// onOneProcessor keeps all threads of this process on processor 0.
func onOneProcessor() error {
	threads, err := threadsOf(unix.Getpid())
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(1)
	var first unix.CPUSet
	first.Set(0)
	for _, thread := range threads { // later ones inherit it
		if err := unix.SchedSetaffinity(thread, &first); err != nil && err != unix.ESRCH {
			return err
		}
	}
	return nil
}

// Begun returns the handshakes that were begun so far.
func (s *Side) Begun(_ forked.Nothing, n *int64) error { *n = s.begun.Load(); return nil }

// Visit opens the other engine by a new one, and returns the time of that.
func (s *Side) Visit(address string, took *time.Duration) error {
	if _, err := s.open(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	begin := time.Now()
	if _, err := s.engine.OpenSegment(ctx, address); err != nil {
		return err
	}
	*took = time.Since(begin)
	s.engine.Close(time.Second, true)
	return s.engine.Forget()
}

// Heap returns the bytes of the process's heap.
func (s *Side) Heap(_ forked.Nothing, n *int64) error {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	*n = int64(m.HeapInuse)
	return nil
}

// threadsOf returns the ids of a process's threads.
func threadsOf(pid int) (list []int, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, id)
		}
	}
	return list, err
}
