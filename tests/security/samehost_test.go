package security

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/all"
)

// cellBytes is the size of every piece of memory in the tests of one host.
const cellBytes = 4096

// Resident is an engine in a process of its own, with memory that was registered and memory that was not. Only shm
// takes part.
type Resident struct {
	engine           *engine.Engine
	offered, private []byte
}

// Cells are a resident and where its memory is.
type Cells struct {
	Peer             transport.Peer
	Offered, Private uint64
}

// Open starts the engine. It offers one region for reading only.
func (r *Resident) Open(_ forked.Nothing, cells *Cells) error {
	c, err := config.Load(config.Options{Transports: all.Transports()}, map[string]any{"transports/tcp/enable": false})
	if err != nil {
		return err
	}
	if r.engine, err = engine.Open(context.Background(), engine.Options{Config: c,
		Transports: engine.Plugs(all.Factories()...)}); err != nil {
		return err
	}
	for _, b := range []*[]byte{&r.offered, &r.private} {
		if *b, err = unix.Mmap(-1, 0, cellBytes, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
			return err
		}
		pattern(*b, uint64(os.Getpid()+len(r.offered)))
	}
	_, err = r.engine.Register(engine.Memory{Addr: mem.AddressOf(r.offered), Size: cellBytes, Name: "offered",
		Location: "cpu:0", Permission: mem.GlobalReadOnly})
	*cells = Cells{r.engine.Self(), uint64(mem.AddressOf(r.offered)), uint64(mem.AddressOf(r.private))}
	return err
}

// Write sends the resident's offered memory to the region "bait" of an engine, and returns how that ended.
func (r *Resident) Write(to string, outcome *string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	*outcome = "COMPLETED"
	at, err := r.engine.OpenSegment(ctx, to+"/bait")
	if err != nil {
		*outcome = err.Error()
		return nil
	}
	id, err := r.engine.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: mem.AddressOf(r.offered),
		Remote: engine.Remote{Segment: at}, Length: cellBytes})
	if err != nil {
		*outcome = err.Error()
		return nil
	}
	if !r.engine.Wait(id, patience).Terminal() {
		*outcome = "no end"
		return nil
	}
	s, err := r.engine.Summary(id)
	if err == nil && s.Err != nil {
		*outcome = s.Err.Error()
	}
	return err
}

// Look returns the memory, the offered one and the other one.
func (r *Resident) Look(_ forked.Nothing, found *[2][]byte) error {
	*found = [2][]byte{r.offered, r.private}
	return nil
}

// pattern depends on the position and a seed.
func pattern(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte((uint64(i) + seed) * 0x9e37_79b9_7f4a_7c15 >> 56)
	}
}

// resident starts a process with an engine.
func resident(t *testing.T) (*forked.Child, Cells) {
	t.Helper()
	c, err := forked.Start()
	require.NoError(t, err)
	t.Cleanup(c.Kill)
	var cells Cells
	require.NoError(t, c.Call("Resident.Open", forked.Nothing{}, &cells))
	return c, cells
}

func look(t *testing.T, c *forked.Child) (found [2][]byte) {
	t.Helper()
	require.NoError(t, c.Call("Resident.Look", forked.Nothing{}, &found))
	return found
}

// relay is an engine's control plane without an engine. It offers the region of another one as its own, at an address
// of its choice. It answers greetings with the other one's answers, or with a process that it names itself.
type relay struct {
	server *control.Server
	client *control.Client
	self   transport.Peer
	target transport.Peer
	offer  *segment.Description

	mu     sync.Mutex
	heard  []byte                    // the claim of the last engine that has greeted us
	forged func(heard []byte) []byte // the claim in our answer; nil: the target answers
}

func newRelay(t *testing.T, target Cells, at uint64) *relay {
	t.Helper()
	credentials, err := security.Open(security.Settings{})
	require.NoError(t, err)
	r := &relay{target: target.Peer, self: transport.Peer{Name: "relay", MachineID: target.Peer.MachineID,
		Network: target.Peer.Network, ID: credentials.ID()}}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	options := control.Options{Self: func() transport.Peer { return r.self }, Credentials: credentials, Log: log}
	r.client = control.NewClient(options)
	r.server, err = control.Listen([]string{"127.0.0.1:0"}, options)
	require.NoError(t, err)
	t.Cleanup(func() {
		r.client.Close()
		require.NoError(t, r.server.Close(context.Background()))
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.self.Address = r.server.Addresses()[0]
	described, err := r.client.Describe(ctx, r.target, nil)
	require.NoError(t, err)
	d := bytes.ReplaceAll(described.Find("offered").Descriptors["shm"], r.target.ID[:], r.self.ID[:])
	d = bytes.ReplaceAll(d, binary.LittleEndian.AppendUint64(nil, target.Offered),
		binary.LittleEndian.AppendUint64(nil, at))
	r.offer = &segment.Description{Address: r.self.Address, MachineID: r.self.MachineID,
		ID: r.self.ID, Epoch: 1, Regions: []segment.Region{{ID: 1, Name: "bait", Addr: at,
			Size: cellBytes, Location: "cpu:0", Kind: mem.Host, Permission: mem.GlobalReadWrite,
			Descriptors: map[string]transport.Descriptor{"shm": d}}}}
	require.NoError(t, r.offer.Seal())
	r.offer.Transports = described.Transports
	r.server.Start(r)
	return r
}

func (r *relay) Describe(context.Context, transport.Peer, uint64, bool) (*control.Offer, error) {
	return &control.Offer{Encoded: segment.Encode(r.offer, true), Transports: r.offer.Transports}, nil
}

// Serve takes greetings of version 2: version, kind, token, claim. The answer has a token, a claim, a file, a tracer.
func (r *relay) Serve(ctx context.Context, _ transport.Peer, name string, message []byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(message) < 18+32 {
		return message[:1], nil
	}
	r.heard = bytes.Clone(message[18:])
	if r.forged == nil {
		return r.client.Call(ctx, r.target, name, message)
	}
	claim := r.forged(r.heard)
	return slices.Concat(message[:1], message[2:18], claim, claim[12:], make([]byte, 4)), nil
}

func (r *relay) Notified(context.Context, transport.Peer, uint64, []byte) error {
	return errs.New(errs.NotImplemented, "relay", "no notifications")
}

func (r *relay) Changed(transport.Peer, uint64)            {}
func (r *relay) Reported(transport.Peer, []control.Traced) {}

// attack makes the victim open a relay that wants it to write into a process of the relay's choice. Nothing may be
// written there: the victim finds out by itself that it is another engine's process.
func attack(t *testing.T, victim *forked.Child, r *relay, says string, targets ...*forked.Child) {
	t.Helper()
	var before [][2][]byte
	for _, c := range targets {
		before = append(before, look(t, c))
	}
	var outcome string
	require.NoError(t, victim.Call("Resident.Write", r.self.Address, &outcome))
	for i, c := range targets {
		for k, now := range look(t, c) {
			require.True(t, bytes.Equal(before[i][k], now), "foreign memory was written: %s", outcome)
		}
	}
	require.Contains(t, outcome, says)
}

const (
	refused   = "the peer does not share memory with this process"
	otherOnes = "it is of engine"
)

// A peer that was opened must not be able to name memory of the opener itself. It gives the opener's own greeting back
// to it, so that the opener finds itself, and names an address.
func TestOwnGreetingSentBackOpensNoMemoryOfTheOpener(t *testing.T) {
	for says, forged := range map[string]func([]byte) []byte{
		refused:   nil,
		otherOnes: func(heard []byte) []byte { return heard },
	} {
		victim, cells := resident(t)
		r := newRelay(t, cells, cells.Private)
		r.forged = forged
		attack(t, victim, r, says, victim)
	}
}

// A peer that was opened must not be able to send the opener into a third process. It passes the greeting on to another
// engine of the same user. The opener could touch that one's memory. Or it names that engine's process as its own.
func TestRelayedGreetingOpensNoMemoryOfAThirdProcess(t *testing.T) {
	for _, forges := range []bool{false, true} {
		third, cells := resident(t)
		for _, at := range []uint64{cells.Private, cells.Offered} {
			victim, _ := resident(t)
			r, says := newRelay(t, cells, at), refused
			if forges {
				attack(t, third, r, refused, third) // so that the relay hears which process that is
				claim := r.heard
				r.forged, says = func([]byte) []byte { return claim }, otherOnes
			}
			attack(t, victim, r, says, victim, third)
		}
	}
}
