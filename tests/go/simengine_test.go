package tests

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// simEngine is gocore/engine's shell without goroutines, clock and control plane. It hands events to a real core in the
// order in which they came, and the core's wishes to real (simulated) transports.
type simEngine struct {
	run        *simRun
	address    string
	identity   transport.Peer
	core       *dispatch.Core
	transports []transport.Transport
	infos      []transport.Info
	keys       [2][]transport.LocalKey // of the areas, by transport
	offered    []transport.Descriptor  // of the remote area, by transport
	areas      [2][]byte               // for local operands, for peers
	used       [2][simSlots]bool
	peers      map[*simEngine]*simPeer
	links      map[simLink]simTarget
	news       []func(now clock.Time) // for the core, in order
	moves      map[dispatch.BatchID]*simMove
	asked      bool       // the user has said something since the last step
	due        clock.Time // the core's deadline, as the last call has left it
	dead       bool
	fences     transport.Epoch // of the remote area
}

type simPeer struct {
	epoch   transport.Epoch // as it is known
	number  uint32
	at      []transport.Link
	links   []plan.LinkID
	remotes []transport.RemoteKey
	older   []transport.RemoteKey  // those before: of a call that was planned then and is submitted now
	by      []transport.Descriptor // that remotes were imported by
}

func newSimEngine(t *testing.T, r *simRun, i int, arena []byte) *simEngine {
	e := &simEngine{run: r, address: string(rune('A' + i)),
		core: dispatch.New(dispatch.Options{Merge: true, Failovers: 3, Transports: []string{"fast", "slow"},
			Batches: 1024, FenceHost: 5 * time.Millisecond, Stall: 300 * time.Millisecond,
			LinkWait:     50 * time.Millisecond,
			SilentAfter:  20 * time.Millisecond,
			CondemnAfter: 40 * time.Millisecond, AttemptLimit: 100 * time.Millisecond,
			SuspectAfter: time.Duration(1+r.random.IntN(5)) * time.Millisecond}), peers: map[*simEngine]*simPeer{},
		moves: map[dispatch.BatchID]*simMove{}, links: map[simLink]simTarget{}}
	e.identity = transport.Peer{Address: e.address, MachineID: "m",
		ID: transport.NumberedID(uint64(i) + 1 + uint64(len(r.incarnations))*r.incarnations[i])}
	r.incarnations[i]++
	e.due = e.core.Deadline()
	e.areas[0], e.areas[1] = arena[:simSlots*simSlot], arena[simSlots*simSlot:]
	for k, name := range []string{"fast", "slow"} {
		s := sim.Settings{Network: r.network, Name: name, Rails: 3 - 2*k, SliceMax: 4 << 10, Vectors: k == 0}
		if k == 0 { // acknowledged before it is placed
			s.Posts = time.Duration(r.random.IntN(int(2 * time.Millisecond)))
			s.Reaches, s.Untold = r.someRails(i)
		}
		tr, err := sim.Factory{Settings: s}.Open(context.Background(), nil, simHost{e, k}, &simSink{e, uint8(k)})
		require.NoError(t, err)
		e.transports = append(e.transports, tr)
		e.infos = append(e.infos, tr.Info())
		for area := range e.areas {
			region := mem.Region{ID: mem.RegionID(area + 1), Addr: address(e.areas[area]),
				Size: uint64(len(e.areas[area])), Fd: -1}
			if area == 1 {
				region.Permission = mem.GlobalReadWrite
			}
			key, descriptor, err := tr.Register(context.Background(), region)
			require.NoError(t, err)
			e.keys[area] = append(e.keys[area], key)
			if area == 1 {
				e.offered = append(e.offered, descriptor)
			}
		}
	}
	return e
}

// someRails leaves, in a third of the runs, some of the fast transport's three rails out for the areas of an engine. In
// half of these the transport does not tell, so its rails refuse.
func (r *simRun) someRails(i int) (reaches func(*mem.Region, int) bool, untold bool) {
	keys := rand.New(rand.NewPCG(r.seed, uint64(i)))
	if r.seed%3 != 0 {
		return nil, false
	}
	masks := [2]uint64{1 + keys.Uint64N(7), 1 + keys.Uint64N(7)}
	return func(m *mem.Region, rail int) bool { return masks[m.ID-1]>>rail&1 != 0 }, r.seed%2 == 0
}

func (e *simEngine) attach(p *simEngine) {
	known := &simPeer{number: uint32(len(e.peers) + 1), epoch: p.fences} // as the description says it
	for k, tr := range e.transports {
		link, err := tr.Attach(p.identity)
		if err != nil {
			panic(err)
		}
		id := e.core.AddLink(dispatch.LinkSpec{Peer: known.number, PeerName: p.address, Transport: uint8(k), Link: link,
			Info: &e.infos[k], SameHost: true, Probes: true})
		e.links[simLink{uint8(k), link}] = simTarget{id, known}
		known.links, known.at = append(known.links, id), append(known.at, link)
		remote, err := tr.Import(link, p.offered[k])
		if err != nil {
			panic(err)
		}
		known.remotes = append(known.remotes, remote)
		known.by = append(known.by, p.offered[k])
	}
	known.older = slices.Clone(known.remotes)
	e.peers[p] = known
	e.due = e.core.Deadline()
}

// simLink is a link as its transport calls it, simTarget as the core does.
type simLink struct {
	transport uint8
	link      transport.Link
}

type simTarget struct {
	id   plan.LinkID
	peer *simPeer
}

func (e *simEngine) plan(t *testing.T, p *simEngine, op transport.Op) *plan.Plan {
	known := e.peers[p]
	remotes := known.remotes
	if e.run.random.IntN(8) == 0 {
		remotes = known.older
	}
	var list []plan.Candidate
	for k := range e.transports {
		c := plan.Candidate{Transport: uint8(k), Info: &e.infos[k], Link: known.links[k], LocalKey: e.keys[0][k],
			RemoteKey: remotes[k], SameHost: true}
		match, err := e.transports[k].(transport.Matcher).Match(known.at[k], c.LocalKey, c.RemoteKey)
		if c.Match = match; err != nil {
			c.Disabled = err.Error()
		}
		if match.Rails != 0 {
			seen["keys of some rails"]++
		}
		list = append(list, c)
	}
	made, err := plan.Build(&plan.Request{Op: op}, list)
	require.Nil(t, err)
	return made
}

// take finds a place that nobody has used yet, -1 if there is none. Places are used once, so that late writes show.
func (e *simEngine) take(local bool) int {
	area := area(local)
	for i, used := range e.used[area] {
		if !used {
			e.used[area][i] = true
			return i
		}
	}
	return -1
}

func (e *simEngine) giveBack(local bool, i int) {
	if i >= 0 {
		e.used[area(local)][i] = false
	}
}

func area(local bool) int {
	if local {
		return 0
	}
	return 1
}

func (e *simEngine) slot(local bool, i int) []byte {
	return e.areas[area(local)][i*simSlot : (i+1)*simSlot]
}

// answer carries out the core's questions about rails: doubts have no answer here, probes go over the rail.
func (e *simEngine) answer(effects *dispatch.Effects) {
	for _, q := range effects.AskLiveness {
		e.news = append(e.news, func(now clock.Time) { e.core.Liveness(q, transport.Signs{}, now) })
	}
	for _, q := range effects.Probe {
		prober, _ := transport.Find[transport.Prober](e.transports[q.Transport])
		prober.Probe(q.Rail, func(took clock.Time, err *errs.Error) {
			e.news = append(e.news, func(now clock.Time) { e.core.Probed(q.Link, q.Rail, took, err, now) })
		})
	}
}

// step hands over the news, runs one step of the core and carries out its effects. It reports whether there was work.
func (e *simEngine) step(r *simRun) bool {
	now := r.network.Now()
	if len(e.news) == 0 && !e.asked && e.due > now {
		return false
	}
	defer func() { e.due = e.core.Deadline() }()
	e.asked = false
	news := e.news
	e.news = nil
	for _, tell := range news {
		tell(now)
	}
	effects := e.core.Step(now)
	for _, b := range effects.Changed {
		e.look(r, b)
	}
	for _, b := range effects.Ended {
		e.look(r, b)
	}
	for i := range effects.Submit {
		p := &effects.Submit[i]
		list := append([]*transport.Slice(nil), p.Slices...)
		if n := e.transports[p.Transport].Submit(list); n < len(list) {
			rest := list[n:]
			e.news = append([]func(clock.Time){func(now clock.Time) { e.core.Refuse(rest, now) }}, e.news...)
		}
	}
	for i := range effects.Withdraw {
		p := &effects.Withdraw[i]
		list := append([]*transport.Slice(nil), p.Slices...)
		e.transports[p.Transport].Withdraw(list)
		e.core.WithdrawalSent(list)
	}
	for i := range effects.Fence {
		e.transports[effects.Fence[i].Transport].Fence(effects.Fence[i].Rail)
	}
	for _, ev := range effects.Events {
		seen[ev.Kind.String()]++
	}
	e.answer(effects)
	e.carryKeys(effects)
	return true
}

// look checks that the core's account of a batch is allowed.
func (e *simEngine) look(r *simRun, b dispatch.BatchID) {
	m := e.moves[b]
	s, err := e.core.Status(b, 0)
	require.Nil(r.t, err)
	require.GreaterOrEqual(r.t, s.Bytes, m.bytes, "bytes fell")
	require.LessOrEqual(r.t, s.Bytes, m.spec.Length)
	m.bytes = s.Bytes
	if s.State.Terminal() && !m.ended {
		r.end(m, s)
	}
}

// simSink records the reports of the transport.
type simSink struct {
	engine *simEngine
	index  uint8
}

func (s *simSink) tell(link transport.Link, what func(to simTarget, now clock.Time)) {
	e := s.engine
	e.news = append(e.news, func(now clock.Time) {
		if to, ok := e.links[simLink{s.index, link}]; ok {
			what(to, now)
		}
	})
}

func (s *simSink) Complete(list []transport.Completion) {
	list = append([]transport.Completion(nil), list...)
	for _, c := range list {
		if c.Err != nil && c.Err.Code == errs.Replaced {
			seen["refused as replaced"]++
		}
		if c.Err != nil && c.Err.Code == errs.NotHere {
			seen["refused on a rail"]++
		}
	}
	s.engine.news = append(s.engine.news, func(now clock.Time) { s.engine.core.Complete(s.index, list, now) })
}

func (s *simSink) Ready(rail transport.Rail) {
	s.tell(rail.Link, func(to simTarget, _ clock.Time) { s.engine.core.Ready(to.id, rail) })
}

func (s *simSink) Progress(rail transport.Rail) {
	s.tell(rail.Link, func(to simTarget, now clock.Time) { s.engine.core.Progress(to.id, rail, now) })
}

func (s *simSink) RailUp(info transport.RailInfo) {
	s.tell(info.Rail.Link, func(to simTarget, now clock.Time) { s.engine.core.RailUp(to.id, info, now) })
}

func (s *simSink) RailDown(rail transport.Rail, cause *errs.Error) {
	s.tell(rail.Link, func(to simTarget, now clock.Time) { s.engine.core.RailDown(to.id, rail, cause, now) })
}

func (s *simSink) LinkDown(link transport.Link, cause *errs.Error) {
	s.tell(link, func(to simTarget, now clock.Time) {
		s.engine.core.DropLink(to.id, cause, now)
		if cause != nil && (cause.Code == errs.PeerRestarted || cause.Side == errs.SideRemote) {
			s.engine.core.PeerGone(to.peer.number, cause, now)
		}
	})
}

func (s *simSink) Fenced(link transport.Link, key transport.RemoteKey, epoch transport.Epoch) {
	if to, ok := s.engine.links[simLink{s.index, link}]; ok {
		to.peer.epoch = max(to.peer.epoch, epoch)
	}
	s.tell(link, func(to simTarget, now clock.Time) {
		s.engine.core.Fenced(map[dispatch.RegionKey]transport.Epoch{{Link: to.id, Key: key}: epoch}, now)
	})
}

func (s *simSink) Notified(transport.Peer, []byte) bool { return true }

// simHost is the little of the engine that a simulated transport asks for.
type simHost struct {
	engine *simEngine
	index  int // of the transport
}

func (h simHost) Self() transport.Peer { return h.engine.identity }

func (h simHost) Call(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, errs.New(errs.NotImplemented, "call", "the simulated network needs no handshake")
}

func (h simHost) Refused(transport.Refusal, string, error) {}
func (h simHost) Addresses() []netip.Addr                  { return nil }

func (h simHost) Log() *slog.Logger { return slog.New(slog.DiscardHandler) }
