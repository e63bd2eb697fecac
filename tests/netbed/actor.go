package netbed

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/all"
)

// Actor is an engine with one region in a child process; its exported methods are called by the parent (Child.Call).
// The region lies between two guard bands. Calls run side by side; Open comes first and Close last.
type Actor struct {
	Engine  *engine.Engine
	Segment engine.SegmentID // of the peer's region, after Connect
	Memory  []byte           // the region's bytes

	whole  []byte // with the guard bands
	mu     sync.Mutex
	events []string
	reader engine.FollowerID
	moves  map[dispatch.BatchID]bool
	ended  uint64 // bytes of moves that have ended
}

const (
	guardBytes = 64 << 10
	guardByte  = 0xa5
	regionName = "kv"
)

// OpenArgs describe an engine and its region.
type OpenArgs struct {
	Settings map[string]string // JSON of each value, by key
	Bytes    int
}

// Settings that put an engine of the bed on a host's rails. Only tcp takes part: the hosts share a machine, and bytes
// in shared memory cross no rail.
func (h *Host) Settings() map[string]string {
	list, _ := json.Marshal(h.Addresses) // strings cannot fail
	address, _ := json.Marshal(h.Addresses[0])
	key, _ := json.Marshal(h.key)
	return map[string]string{"transports/tcp/addresses": string(list), "rpc_server_hostname": string(address),
		"transports/shm/enable": "false", "security/cluster_key": string(key)}
}

// ClusterSecret is the content of the key file of all engines on beds.
var ClusterSecret = bytes.Repeat([]byte("netbed "), 6)

// ClusterKey writes the key file of all engines on beds into a folder: hosts admit no other host without one.
func ClusterKey(folder string) (path string, err error) {
	path = filepath.Join(folder, "cluster.key")
	return path, os.WriteFile(path, ClusterSecret, 0o600)
}

// Open starts the engine and returns its address.
func (a *Actor) Open(args OpenArgs, address *string) error {
	settings := map[string]any{}
	for key, text := range args.Settings {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
		settings[key] = value
	}
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings)
	if err != nil {
		return err
	}
	options := engine.Options{Config: c, Transports: engine.Plugs(all.Factories()...)}
	if a.Engine, err = engine.Open(context.Background(), options); err != nil {
		return err
	}
	if a.reader, err = a.Engine.Follow(); err != nil {
		return err
	}
	if a.whole, err = unix.Mmap(-1, 0, args.Bytes+2*guardBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return err
	}
	for i := range a.whole {
		a.whole[i] = guardByte
	}
	a.Memory = a.whole[guardBytes : guardBytes+args.Bytes]
	a.moves = map[dispatch.BatchID]bool{}
	_, err = a.Engine.Register(engine.Memory{Addr: mem.AddressOf(a.Memory), Size: uint64(args.Bytes), Name: regionName,
		Location: mem.Wildcard, Permission: mem.GlobalReadWrite})
	*address = a.Engine.Address()
	return err
}

// Connect opens the region of another actor's engine.
func (a *Actor) Connect(address string, _ *forked.Nothing) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), forked.Patience)
	defer cancel()
	a.Segment, err = a.Engine.OpenSegment(ctx, address+"/"+regionName)
	return err
}

// The byte oracle: the 8 bytes at 8*i depend on i and the seed. So bytes that were shifted, lost, repeated or taken
// from another transfer show.
func word(i, seed uint64) uint64 {
	x := (i+1)*0x9e3779b97f4a7c15 ^ seed*0xbf58476d1ce4e5b9
	return x ^ x>>31
}

// Fill writes the pattern of a seed into the region.
func (a *Actor) Fill(seed uint64, _ *forked.Nothing) error {
	return a.FillPart(PartArgs{Seed: seed, Bytes: uint64(len(a.Memory))}, nil)
}

// FillPart does the same for a part of the region, which begins and ends at multiples of 8.
func (a *Actor) FillPart(args PartArgs, _ *forked.Nothing) error {
	for i := args.Offset; i+8 <= args.Offset+args.Bytes; i += 8 {
		binary.LittleEndian.PutUint64(a.Memory[i:], word(i/8, args.Seed))
	}
	return nil
}

// Check reports the first byte of the region that is not the seed's pattern, or of the guard bands that was touched.
func (a *Actor) Check(seed uint64, _ *forked.Nothing) error {
	return a.CheckPart(PartArgs{Seed: seed, Bytes: uint64(len(a.Memory))}, nil)
}

// PartArgs name a part of the region. Where Or is not 0, each byte may also be that seed's: a cancelled transfer may
// have overwritten any prefix. Known are other seeds by name, for the text of a failure.
type PartArgs struct {
	Seed, Or, Offset, Bytes uint64
	Known                   map[string]uint64
}

// CheckPart does the same for a part of the region, which begins and ends at multiples of 8, and the guard bands.
func (a *Actor) CheckPart(args PartArgs, _ *forked.Nothing) error {
	for i := range guardBytes {
		if behind := len(a.whole) - 1 - i; a.whole[i] != guardByte || a.whole[behind] != guardByte {
			return fmt.Errorf("guard band touched %d bytes from an end of %d", i, len(a.whole))
		}
	}
	for i := args.Offset; i+8 <= args.Offset+args.Bytes; i += 8 {
		have, want := binary.LittleEndian.Uint64(a.Memory[i:]), word(i/8, args.Seed)
		if have != want && (args.Or == 0 || !mixed(have, want, word(i/8, args.Or))) {
			return fmt.Errorf("wrong bytes at offset %d: %#x instead of %#x; %s", i, have, want, a.whose(args))
		}
	}
	return nil
}

// whose lists the ranges of a part by the name of the pattern that they have, as far as some of them.
func (a *Actor) whose(args PartArgs) string {
	const ranges = 12
	known := func(i uint64) string {
		have := binary.LittleEndian.Uint64(a.Memory[i:])
		if have == word(i/8, args.Seed) {
			return "right"
		}
		for name, seed := range args.Known {
			if have == word(i/8, seed) {
				return name
			}
		}
		return "strange"
	}
	var list []string
	end := args.Offset + args.Bytes
	for begin := args.Offset; begin < end && len(list) < ranges; {
		name, i := known(begin), begin+8
		for i < end && known(i) == name {
			i += 8
		}
		list = append(list, fmt.Sprintf("%d bytes %s", i-begin, name))
		begin = i
	}
	return strings.Join(list, ", ")
}

// mixed reports whether each byte of have is that of one of two words.
func mixed(have, a, b uint64) bool {
	for shift := 0; shift < 64; shift += 8 {
		if got := byte(have >> shift); got != byte(a>>shift) && got != byte(b>>shift) {
			return false
		}
	}
	return true
}

// Peek returns a part of the region.
func (a *Actor) Peek(args PartArgs, part *[]byte) error {
	*part = a.Memory[args.Offset : args.Offset+args.Bytes]
	return nil
}

// Address of a place of the region.
func (a *Actor) Address(offset uint64) uintptr { return mem.AddressOf(a.Memory[offset:]) }

// MoveArgs is one request between the same place of both regions; no Bytes means the whole region.
type MoveArgs struct {
	Op       transport.Op
	Class    uint8
	Offset   uint64
	Bytes    uint64
	Deadline time.Duration // from now, 0 for none
}

// Outcome is the end of a move.
type Outcome struct {
	State    string
	Dirty    bool
	Bytes    uint64
	Attempts uint32
	Error    string
	Took     time.Duration
}

// Move carries out a request and returns its end.
func (a *Actor) Move(args MoveArgs, out *Outcome) error {
	if args.Bytes == 0 {
		args.Bytes = uint64(len(a.Memory))
	}
	r := engine.Request{Source: mem.AddressOf(a.Memory[args.Offset:]), Length: args.Bytes,
		Remote: engine.Remote{Segment: a.Segment, Offset: args.Offset}}
	r.Op, r.Class = args.Op, args.Class
	begin := clock.Now()
	if args.Deadline > 0 {
		r.Deadline = begin.Add(args.Deadline)
	}
	id, err := a.Engine.Move(&r)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.moves[id] = true
	a.mu.Unlock()
	if !a.Engine.Wait(id, forked.Patience).Terminal() {
		return errors.New("the move has no end")
	}
	sum, err := a.Engine.Summary(id)
	if err != nil {
		return err
	}
	*out = Outcome{State: sum.State.String(), Dirty: sum.Dirty, Bytes: sum.Bytes, Attempts: sum.Attempts,
		Took: clock.Now().Sub(begin)}
	if sum.Err != nil {
		out.Error = sum.Err.Error()
	}
	a.mu.Lock()
	delete(a.moves, id)
	a.ended += sum.Bytes
	a.mu.Unlock()
	return a.Engine.FreeBatch(id)
}

// PingArgs ask for moves one after the other, of the class that is the default.
type PingArgs struct {
	Op    transport.Op
	Bytes uint64
	Count int
}

// Ping returns how long each took.
func (a *Actor) Ping(args PingArgs, took *[]time.Duration) error {
	for range args.Count {
		var out Outcome
		if err := a.Move(MoveArgs{Op: args.Op, Bytes: args.Bytes}, &out); err != nil {
			return err
		}
		if out.State != dispatch.Completed.String() {
			return fmt.Errorf("a %v of %d bytes ended %s: %s", args.Op, args.Bytes, out.State, out.Error)
		}
		*took = append(*took, out.Took)
	}
	return nil
}

// Acknowledged counts the bytes of all moves until now.
func (a *Actor) Acknowledged(_ forked.Nothing, bytes *uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	*bytes = a.ended
	for id := range a.moves {
		if sum, err := a.Engine.Summary(id); err == nil {
			*bytes += sum.Bytes
		}
	}
	return nil
}

// Events returns everything that has happened, one line an event.
func (a *Actor) Events(_ forked.Nothing, lines *[]string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	list, _, err := a.Engine.Events(a.reader, 1<<16)
	for _, e := range list {
		line := fmt.Sprintf("%v %s", e.Kind, e.Rail)
		if e.Err != nil {
			line += " " + e.Err.Side.String() + ": " + e.Err.Error()
		}
		a.events = append(a.events, line)
	}
	*lines = a.events
	return err
}

// Explain says how the bytes of the region would go now.
func (a *Actor) Explain(_ forked.Nothing, text *string) error {
	how, err := a.Engine.Explain(&engine.Request{Terms: engine.Terms{Op: transport.Write},
		Source: mem.AddressOf(a.Memory), Length: uint64(len(a.Memory)), Remote: engine.Remote{Segment: a.Segment}})
	if err != nil {
		return err
	}
	whole, err := json.MarshalIndent(how, "", " ")
	*text = string(whole)
	return err
}

// Metrics returns the engine's.
func (a *Actor) Metrics(_ forked.Nothing, m *map[string]float64) error {
	*m = a.Engine.Metrics()
	return nil
}

// Close ends the engine and returns the names of the memory that it could not take back.
func (a *Actor) Close(_ forked.Nothing, held *[]string) error {
	if a.Engine == nil {
		return nil // Open failed
	}
	*held = a.Engine.Close(forked.Patience, true)
	return a.Engine.Forget()
}

// Alive asks the peer over the control plane whether it is there.
func (a *Actor) Alive(_ forked.Nothing, _ *forked.Nothing) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	alive, err := a.Engine.Alive(ctx, a.Segment)
	if err == nil && !alive {
		err = errors.New("the peer does not answer")
	}
	return err
}
