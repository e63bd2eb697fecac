package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
)

// Crowd is a number of engines in one process, each with a region; its exported methods are called by the parent.
type Crowd struct {
	engines  []*engine.Engine
	segments []engine.SegmentID // of the first engine: its peers, in the order in which they were opened
	memory   []byte             // of the first engine
}

const crowdRegion = 64 << 10

// Start opens engines until there are n, and returns the addresses of all.
func (c *Crowd) Start(n int, addresses *[]string) error {
	debug.SetMaxThreads(50_000) // each engine has goroutines that sleep in the kernel
	for len(c.engines) < n {
		e, err := open(nil)
		if err != nil {
			return fmt.Errorf("engine %d: %w", len(c.engines), err)
		}
		c.engines = append(c.engines, e)
		memory, err := unix.Mmap(-1, 0, crowdRegion, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		if c.memory == nil {
			c.memory = memory
		}
		if _, err := e.Register(engine.Memory{Addr: mem.AddressOf(memory), Size: crowdRegion, Name: "kv",
			Location: "cpu:0", Permission: mem.GlobalReadWrite}); err != nil {
			return err
		}
	}
	for _, e := range c.engines {
		*addresses = append(*addresses, e.Address())
	}
	return nil
}

// Opened is the time of opens side by side. Some are repeated on a machine that is too busy for their handshakes.
type Opened struct {
	Took     time.Duration
	Repeated int
}

const opensMost = 4 // of one peer

// Connect opens peers from the first engine, side by side, and moves 4 KiB to each.
func (c *Crowd) Connect(addresses []string, o *Opened) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	opened, failed := make([]engine.SegmentID, len(addresses)), make([]error, len(addresses))
	var repeated atomic.Int32
	begin := time.Now()
	var group sync.WaitGroup
	for i, address := range addresses {
		group.Go(func() {
			for range opensMost {
				if opened[i], failed[i] = c.engines[0].OpenSegment(ctx, address+"/kv"); failed[i] == nil {
					return
				}
				repeated.Add(1)
			}
		})
	}
	group.Wait()
	o.Took, o.Repeated = time.Since(begin), int(repeated.Load())
	if err := errors.Join(failed...); err != nil {
		return err
	}
	for _, s := range opened {
		if err := c.write(s); err != nil {
			return err
		}
	}
	c.segments = append(c.segments, opened...)
	return nil
}

// Reach makes every engine but the first open one peer, some at a time. Nobody lets the engines of several processes
// take turns, and an engine that a thousand greet at once does not end their handshakes in time.
func (c *Crowd) Reach(address string, o *Opened) error {
	const together = 16
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	failed := make([]error, len(c.engines))
	turns := make(chan struct{}, together)
	begin := time.Now()
	var group sync.WaitGroup
	for i, e := range c.engines[1:] {
		turns <- struct{}{}
		group.Go(func() {
			_, failed[i] = e.OpenSegment(ctx, address+"/kv")
			<-turns
		})
	}
	group.Wait()
	o.Took = time.Since(begin)
	return errors.Join(failed...)
}

func (c *Crowd) write(to engine.SegmentID) error {
	id, err := c.engines[0].Move(&engine.Request{Terms: engine.Terms{Op: transport.Write},
		Source: mem.AddressOf(c.memory), Remote: engine.Remote{Segment: to},
		Length: 4096})
	if err != nil {
		return err
	}
	if state := c.engines[0].Wait(id, limit); state != dispatch.Completed {
		status, _ := c.engines[0].Status(id, 0)
		return fmt.Errorf("a WRITE of 4 KiB: %v: %v", state, status.Err)
	}
	return c.engines[0].FreeBatch(id)
}

// Small measures WRITEs of 4 KiB to the first peer, and returns how long each took.
func (c *Crowd) Small(count int, took *[]time.Duration) error {
	for range count {
		begin := clock.Now()
		if err := c.write(c.segments[0]); err != nil {
			return err
		}
		*took = append(*took, clock.Now().Sub(begin))
	}
	return nil
}

// pileBatch is the number of requests of a batch that piles up.
const pileBatch = 1 << 14

// Pile submits WRITEs of 64 bytes to the second peer, and returns the time of one.
func (c *Crowd) Pile(n int, each *time.Duration) error {
	requests := make([]engine.Request, pileBatch)
	for i := range requests {
		requests[i] = engine.Request{Terms: engine.Terms{Op: transport.Write, Class: classLow},
			Source: mem.AddressOf(c.memory), Remote: engine.Remote{Segment: c.segments[1], Offset: uint64(i%1000) * 64},
			Length: 64}
	}
	took := time.Duration(0)
	for done := 0; done < n; {
		list := requests[:min(pileBatch, n-done)]
		done += len(list)
		id, err := c.engines[0].NewBatch(len(list))
		if err != nil {
			return err
		}
		begin := clock.Now()
		if _, err := c.engines[0].Submit(id, list, nil); err != nil {
			return err
		}
		took += clock.Now().Sub(begin)
	}
	*each = took / time.Duration(n)
	return nil
}

const classLow = 2

// Use is the memory and CPU that a process has used.
type Use struct {
	Resident    int64 // bytes
	Descriptors int
	Connections int // of the control plane: goroutines of gRPC
	CPU         time.Duration
}

// Used returns the process's use of the machine.
func (c *Crowd) Used(_ forked.Nothing, u *Use) error {
	debug.FreeOSMemory()
	stacks := make([]byte, 64<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	u.Connections = bytes.Count(stacks, []byte("transport.(*loopyWriter).run("))
	stacks = nil
	debug.FreeOSMemory()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	u.Descriptors = len(list)
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	u.Resident = pages * int64(os.Getpagesize())
	var r unix.Rusage
	if err == nil {
		err = unix.Getrusage(unix.RUSAGE_SELF, &r)
	}
	u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	return err
}
