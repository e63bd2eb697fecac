// Command gobench is tent from Go as a contestant of the benchmark. It has an engine here, an engine in a process of
// its own, and the lines of tests/bench/contestant.py on standard input:
//
//	write|read SIZE COUNT ITERATIONS CONNECTIONS    ->  ns N N N ...     submit, wait, free: one number a batch
//	submit SIZE COUNT ITERATIONS CONNECTIONS        ->  ns N N N ...     the call of Submit alone
//	slot 1 1 ITERATIONS _                           ->  ns N N N ...     a hazard slot, taken and given back
//	tag|seal SIZE COUNT ITERATIONS _                ->  ns N N N ...     AES-128-GCM alone: a tag, or the bytes too
//	check write|read SIZE COUNT CONNECTIONS         ->  ok | bad OFFSET
//
// The number of connections is a setting of the transport and is not looked at. Usage: gobench KIND ARENA_BYTES. Kind
// shm uses memory that tent allocated, and own memory that the program mapped itself. The others leave shared memory
// out: tcp, and auth, sign, encrypt and insecure, which name the protection of the lanes.
package main

import (
	"bufio"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/host/hazard"
)

const (
	positions = 16 // batches walk over as many places
	limit     = 60 * time.Second
)

func main() {
	report.UseProcessors()
	var err error
	if len(os.Args) == 4 && os.Args[1] == "--peer" {
		err = servePeer(os.Args[2], os.Args[3])
	} else if len(os.Args) == 3 {
		err = initiate(os.Args[1], os.Args[2])
	} else {
		err = fmt.Errorf("usage: gobench tcp|shm|own|auth|sign|encrypt|insecure ARENA_BYTES")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gobench:", err)
		os.Exit(1)
	}
}

// open starts an engine that offers size bytes under the name "kv".
func open(kind, size string) (*engine.Engine, mem.Region, error) {
	n, err := strconv.ParseUint(size, 10, 64)
	if err != nil {
		return nil, mem.Region{}, err
	}
	settings, err := config.Load(config.Options{Env: os.Getenv, Transports: all.Transports()}, settingsOf(kind))
	if err != nil {
		return nil, mem.Region{}, err
	}
	e, err := engine.Open(context.Background(),
		engine.Options{Config: settings, Transports: engine.Plugs(all.Factories()...)})
	if err != nil {
		return nil, mem.Region{}, err
	}
	region, err := memory(e, kind, n)
	if err != nil {
		e.Close(limit, true)
	}
	return e, region, err
}

// settingsOf returns the settings of both engines.
func settingsOf(kind string) map[string]any {
	settings := map[string]any{"transports/shm/enable": kind == "shm" || kind == "own"}
	switch kind {
	case "auth", "sign", "encrypt":
		settings["security/data"] = kind
	case "insecure":
		settings["insecure"] = true
	}
	return settings
}

// memory returns the memory of one side: tent's, or for "own" a mapping that is there until the program ends.
func memory(e *engine.Engine, kind string, size uint64) (mem.Region, error) {
	m := engine.Memory{Size: size, Name: "kv", Location: "cpu:0", Permission: mem.GlobalReadWrite}
	if kind != "own" {
		_, region, err := e.Allocate(m)
		return region, err
	}
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return mem.Region{}, err
	}
	m.Addr = uintptr(start)
	_, err = e.Register(m)
	return mem.Region{Addr: m.Addr, Size: size}, err
}

// servePeer offers memory and carries out the commands of its standard input: "fill SEED", "check LENGTH SEED".
func servePeer(kind, size string) error {
	e, region, err := open(kind, size)
	if err != nil {
		return err
	}
	defer e.Close(limit, true)
	fmt.Println(e.Address())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		n, err := numbers(words[1:])
		if err != nil {
			return err
		}
		if words[0] == "fill" {
			fill(region, n[0])
			fmt.Println(-1)
		} else {
			fmt.Println(firstWrong(region, n[0], n[1]))
		}
	}
	return lines.Err()
}

// peer is the other process, driven through its standard input.
type peer struct {
	command *exec.Cmd
	in      *bufio.Writer
	out     *bufio.Scanner
}

func startPeer(kind, size string) (*peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &peer{command: exec.Command(self, "--peer", kind, size)}
	p.command.Stderr = os.Stderr
	in, err := p.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = bufio.NewWriter(in), bufio.NewScanner(out)
	return p, p.command.Start()
}

func (p *peer) line() (string, error) {
	if !p.out.Scan() {
		return "", fmt.Errorf("the peer has ended: %v", p.out.Err())
	}
	return p.out.Text(), nil
}

func (p *peer) ask(format string, args ...any) (int64, error) {
	fmt.Fprintf(p.in, format+"\n", args...)
	if err := p.in.Flush(); err != nil {
		return 0, err
	}
	answer, err := p.line()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer, 10, 64)
}

func initiate(kind, size string) error {
	p, err := startPeer(kind, size)
	if err != nil {
		return err
	}
	defer func() {
		_ = p.command.Process.Kill()
		_ = p.command.Wait()
	}()
	address, err := p.line()
	if err != nil {
		return err
	}
	e, region, err := open(kind, size)
	if err != nil {
		return err
	}
	defer e.Close(limit, true)
	segment, err := e.OpenSegment(context.Background(), address+"/kv")
	if err != nil {
		return err
	}
	b := &bench{e, p, region, segment, 0}
	fmt.Println("ready", p.command.Process.Pid)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := b.command(strings.Fields(lines.Text()))
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return lines.Err()
}

func numbers(words []string) ([]uint64, error) {
	list := make([]uint64, len(words))
	for i, w := range words {
		var err error
		if list[i], err = strconv.ParseUint(w, 10, 64); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// bench is the initiator's side.
type bench struct {
	engine  *engine.Engine
	peer    *peer
	region  mem.Region
	segment engine.SegmentID
	seed    uint64
}

func (b *bench) command(words []string) (string, error) {
	checking := words[0] == "check"
	if checking {
		words = words[1:]
	}
	n, err := numbers(words[1:])
	if err != nil {
		return "", err
	}
	op := transport.Write
	if words[0] == "read" {
		op = transport.Read
	}
	if checking {
		return b.check(op, n[0], n[1])
	}
	switch words[0] {
	case "slot":
		return slots(int(n[2]))
	case "tag", "seal":
		return ciphers(words[0] == "tag", n[0], n[1], int(n[2]))
	}
	took, err := b.measure(op, n[0], n[1], int(n[2]), words[0] == "submit")
	if err != nil {
		return "", err
	}
	return "ns " + strings.Trim(fmt.Sprint(took), "[]"), nil
}

// requests are the pieces of one batch at one of the positions.
func (b *bench) requests(op transport.Op, size, count uint64, position int) []engine.Request {
	room := max(1, b.region.Size/(size*count))
	base := uint64(position) % room * size * count
	list := make([]engine.Request, count)
	for i := range list {
		offset := base + uint64(i)*size
		list[i] = engine.Request{Terms: engine.Terms{Op: op}, Source: b.region.Addr + uintptr(offset),
			Remote: engine.Remote{Segment: b.segment, Offset: offset}, Length: size}
	}
	return list
}

// run moves one batch and returns the time from the first call to the last, or that of the submit alone. It reads
// the clock twice, as the C programs beside it do: a reading costs some 15 to 30 ns, a small batch less than 400.
func (b *bench) run(list []engine.Request, submitOnly bool) (took time.Duration, err error) {
	var id dispatch.BatchID
	begin := clock.Now()
	if len(list) == 1 {
		id, err = b.engine.Move(&list[0])
	} else if id, err = b.engine.NewBatch(len(list)); err == nil {
		if submitOnly {
			begin = clock.Now()
		}
		_, err = b.engine.Submit(id, list, nil)
	}
	if submitOnly {
		took = clock.Now().Sub(begin)
	}
	if err != nil {
		return 0, err
	}
	if state := b.engine.Wait(id, limit); state != dispatch.Completed {
		return 0, fmt.Errorf("the batch is %v", state)
	}
	err = b.engine.FreeBatch(id)
	if !submitOnly {
		took = clock.Now().Sub(begin)
	}
	return took, err
}

// apart is the time between two submits that are measured alone: the peer sleeps by then. A shorter pause ends now
// while its worker still looks for bytes, now behind that, and to wake it takes some 10 µs of the send.
const apart = time.Millisecond

func rest() {
	for end := clock.Now().Add(apart); clock.Now() < end; {
	}
}

// measure returns nanoseconds: of each batch from submit to its end, or of the submit alone.
func (b *bench) measure(op transport.Op, size, count uint64, iterations int, submitOnly bool) ([]int64, error) {
	var lists [positions][]engine.Request
	for i := range lists {
		lists[i] = b.requests(op, size, count, i)
	}
	took := make([]int64, iterations)
	for i := range took {
		if submitOnly {
			rest()
		}
		batch, err := b.run(lists[i%positions], submitOnly)
		if err != nil {
			return nil, err
		}
		took[i] = int64(batch)
	}
	return took, nil
}

// ciphers returns nanoseconds of AES-128-GCM over count pieces of size bytes, which stay in the cache. One end of a
// protected lane computes as much at least.
func ciphers(tagOnly bool, size, count uint64, iterations int) (string, error) {
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		return "", err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return "", err
	}
	nonce := make([]byte, aead.NonceSize())
	bytes, room := make([]byte, size), make([]byte, 0, size+uint64(aead.Overhead()))
	took := make([]int64, iterations)
	for i := range took {
		begin := clock.Now()
		for k := range count {
			binary.LittleEndian.PutUint64(nonce, uint64(i)*count+k)
			if tagOnly {
				aead.Seal(room, nonce, nil, bytes)
			} else {
				aead.Seal(room, nonce, bytes, nil)
			}
		}
		took[i] = int64(clock.Now().Sub(begin))
	}
	return "ns " + strings.Trim(fmt.Sprint(took), "[]"), nil
}

// slots returns nanoseconds of a hazard slot, taken and given back, as each copy between two processes does.
func slots(iterations int) (string, error) {
	const each = 10000 // a clock costs more than a slot
	table := hazard.NewTable(1)
	page, err := table.NewPage(os.Getpid(), -1)
	if err != nil {
		return "", err
	}
	view, err := hazard.NewView(page.Fd())
	if err != nil {
		return "", err
	}
	region, err := table.Add()
	if err != nil {
		return "", err
	}
	took := make([]int64, iterations)
	for i := range took {
		begin := time.Now()
		for range each {
			view.Leave(view.Enter(region, view.Epoch(), 0))
		}
		took[i] = int64(time.Since(begin)) / each
	}
	view.Unmap()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return "ns " + strings.Trim(fmt.Sprint(took), "[]"), table.Close(ctx)
}

// check moves one batch of fresh data and has every byte looked at where it arrived.
func (b *bench) check(op transport.Op, size, count uint64) (string, error) {
	b.seed += 2
	mine, theirs := b.seed, b.seed+1
	if op == transport.Read {
		mine, theirs = theirs, mine
	}
	fill(b.region, mine)
	if _, err := b.peer.ask("fill %d", theirs); err != nil {
		return "", err
	}
	if _, err := b.run(b.requests(op, size, count, 0), false); err != nil {
		return "", err
	}
	wrong := firstWrong(b.region, size*count, b.seed)
	if op == transport.Write {
		var err error
		if wrong, err = b.peer.ask("check %d %d", size*count, b.seed); err != nil {
			return "", err
		}
	}
	if wrong >= 0 {
		return fmt.Sprint("bad ", wrong), nil
	}
	return "ok", nil
}

// The pattern depends on the position, so bytes that land in the wrong place are seen.
func word(i, seed uint64) uint64 { return (i+1)*0x9e3779b97f4a7c15 + seed }

func fill(r mem.Region, seed uint64) {
	bytes := mem.Bytes(r.Addr, int(r.Size))
	for i := range bytes {
		bytes[i] = byte(word(uint64(i)/8, seed) >> (8 * (i % 8)))
	}
}

func firstWrong(r mem.Region, length, seed uint64) int64 {
	bytes := mem.Bytes(r.Addr, int(length))
	for i := range bytes {
		if bytes[i] != byte(word(uint64(i)/8, seed)>>(8*(i%8))) {
			return int64(i)
		}
	}
	return -1
}
