// Command filebench is tent from Go, and a plain pool of threads, as contestants of the benchmark of files. It speaks
// the lines of tests/bench/contestant.py on standard input and answers each with one number, the nanoseconds of all of
// it:
//
//	write|read SIZE COUNT ITERATIONS _           runs of COUNT x SIZE bytes, one behind the other, two under way
//	scatter|gather SIZE COUNT ITERATIONS _       COUNT pages of SIZE bytes in random order to and from the file, two
//	                                             under way
//	each SIZE COUNT ITERATIONS THREADS           COUNT READs of SIZE bytes a thread, each awaited before the next
//	pwrite|pread SIZE COUNT ITERATIONS THREADS   the same by system calls, without tent
//
// Usage: filebench SETTINGS FILE, with the settings as JSON. The file is there and large enough for all.
package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
)

const (
	limit = 60 * time.Second
	arena = 64 << 20 // memory that bytes move from and to; runs walk over the file, not over memory
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "filebench:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: filebench SETTINGS FILE")
	}
	b, err := open(os.Args[1], os.Args[2])
	if err != nil {
		return err
	}
	defer b.engine.Close(limit, true)
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		var n [4]uint64
		for i, w := range words[1:] {
			if n[i], err = strconv.ParseUint(w, 10, 64); err != nil {
				return err
			}
		}
		begin := time.Now()
		if err := b.command(words[0], n[0], n[1], int(n[2]), int(n[3])); err != nil {
			return err
		}
		fmt.Println("ns", time.Since(begin).Nanoseconds())
	}
	return lines.Err()
}

// bench is an engine, a file, and memory for its bytes.
type bench struct {
	engine  *engine.Engine
	region  mem.Region
	segment engine.SegmentID
	size    uint64 // of the file
	path    string
	seed    *rand.Rand
}

func open(settings, path string) (*bench, error) {
	c, err := config.Load(config.Options{Env: os.Getenv, Transports: all.Transports()}, settings)
	if err != nil {
		return nil, err
	}
	e, err := engine.Open(context.Background(), engine.Options{Config: c, Transports: engine.Plugs(all.Factories()...)})
	if err != nil {
		return nil, err
	}
	b := &bench{engine: e, path: path, seed: rand.New(rand.NewPCG(1, 2))}
	if b.region.Addr, err = memory(); err != nil {
		return nil, err
	}
	b.region.Size = arena
	if _, err = e.Register(engine.Memory{Addr: b.region.Addr, Size: arena, Location: "cpu:0"}); err != nil {
		return nil, err
	}
	for i := range b.bytes() {
		b.bytes()[i] = byte(i * 7 >> 3) // zeroes are moved faster than anything else
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	b.size = uint64(info.Size())
	b.segment, err = e.OpenFile(context.Background(), path, engine.FileOptions{})
	return b, err
}

// memory maps the arena as cfile.c does: of huge pages where the kernel has some.
func memory() (uintptr, error) {
	const huge = 2 << 20
	m, err := unix.MmapPtr(-1, 0, nil, arena+huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0, err
	}
	at := (uintptr(m) + huge - 1) &^ (huge - 1)
	_ = unix.Madvise(mem.Bytes(at, arena), unix.MADV_HUGEPAGE) // or not: it is as fast as it can be
	return at, nil
}

func (b *bench) bytes() []byte { return mem.Bytes(b.region.Addr, int(b.region.Size)) }

func (b *bench) command(verb string, size, count uint64, iterations, threads int) error {
	op := transport.Read
	if verb == "write" || verb == "scatter" || verb == "pwrite" {
		op = transport.Write
	}
	switch verb {
	case "write", "read":
		return b.stream(iterations, func(i int) (dispatch.BatchID, error) {
			length := size * count
			at := uint64(i) % (b.size / length) * length
			return b.engine.Move(&engine.Request{Terms: engine.Terms{Op: op}, Source: b.region.Addr +
				uintptr(i&1)*arena/2,
				Remote: engine.Remote{Segment: b.segment, Offset: at}, Length: length})
		})
	case "scatter", "gather":
		return b.pages(op, size, count, iterations)
	case "each":
		return parallel(threads, func(thread int) error { return b.each(op, thread, threads, size, count, iterations) })
	case "pread", "pwrite":
		return parallel(threads, func(thread int) error {
			return b.plain(op, thread, threads, size, count,
				iterations)
		})
	}
	return fmt.Errorf("what is %q?", verb)
}

// stream keeps two transfers under way.
func (b *bench) stream(n int, start func(i int) (dispatch.BatchID, error)) error {
	var under []dispatch.BatchID
	for i := 0; i < n || len(under) > 0; i++ {
		if i < n {
			id, err := start(i)
			if err != nil {
				return err
			}
			under = append(under, id)
		}
		if len(under) == 2 || i >= n {
			if err := b.end(under[0]); err != nil {
				return err
			}
			under = under[1:]
		}
	}
	return nil
}

func (b *bench) end(id dispatch.BatchID) error {
	if state := b.engine.Wait(id, limit); state != dispatch.Completed {
		status, _ := b.engine.Status(id, 0)
		return fmt.Errorf("%v: %v", state, status.Err)
	}
	return b.engine.FreeBatch(id)
}

func (b *bench) pages(op transport.Op, size, count uint64, iterations int) error {
	layout := engine.Layout{PageBytes: size}
	own, pages, err := b.engine.NewGrid(engine.OwnMemory, []engine.GridRegion{{Addr: b.region.Addr, Size: arena}},
		layout)
	if err != nil {
		return err
	}
	defer b.engine.CloseGrid(own)
	file, places, err := b.engine.NewGrid(b.segment, []engine.GridRegion{{Region: 1, Size: b.size}}, layout)
	if err != nil {
		return err
	}
	defer b.engine.CloseGrid(file)
	return b.stream(iterations, func(i int) (dispatch.BatchID, error) {
		var ours, theirs []int64
		for j := range int64(count) {
			ours = append(ours, (int64(i)*int64(count)+j)%int64(pages))
			theirs = append(theirs, b.seed.Int64N(int64(places)))
		}
		local, remote := engine.IndexesOf(ours), engine.IndexesOf(theirs)
		return b.engine.Pages(engine.Terms{Op: op},
			&engine.Pages{Local: own, Remote: file, N: int(count), Src: local, Dst: remote}, nil)
	})
}

// each is one thread that waits for each transfer.
func (b *bench) each(op transport.Op, thread, threads int, size, count uint64, iterations int) error {
	r := engine.Request{Terms: engine.Terms{Op: op}, Source: b.region.Addr +
		uintptr(thread)*(1<<20), Remote: engine.Remote{Segment: b.segment}, Length: size}
	room := b.size / size / uint64(threads) // each thread has a part of the file to itself
	for i := range count * uint64(iterations) {
		r.Remote.Offset = (uint64(thread)*room + i%room) * size
		id, err := b.engine.Move(&r)
		if err != nil {
			return err
		}
		if err := b.end(id); err != nil {
			return err
		}
	}
	return nil
}

// plain is one thread of the pool without tent.
func (b *bench) plain(op transport.Op, thread, threads int, size, count uint64, iterations int) error {
	flags := unix.O_RDWR
	if op == transport.Write {
		flags |= unix.O_DIRECT
	}
	fd, err := unix.Open(b.path, flags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buffer := mem.Bytes(b.region.Addr+uintptr(thread)*(1<<20), int(size))
	room := b.size / size / uint64(threads)
	call := unix.Pread
	if op == transport.Write {
		call = unix.Pwrite
	}
	for i := range count * uint64(iterations) {
		if n, err := call(fd, buffer, int64((uint64(thread)*room+i%room)*size)); err != nil || n != int(size) {
			return fmt.Errorf("%d of %d bytes: %v", n, size, err)
		}
	}
	return nil
}

func parallel(threads int, work func(thread int) error) error {
	var wait sync.WaitGroup
	ends := make([]error, threads)
	for i := range threads {
		wait.Go(func() { ends[i] = work(i) })
	}
	wait.Wait()
	for _, err := range ends {
		if err != nil {
			return err
		}
	}
	return nil
}
