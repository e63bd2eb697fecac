package transporttest_test

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
	"github.com/tent-engine/tent/transports/transporttest"
)

// mutantVariable names the mutant that a process runs.
const mutantVariable = "TENT_TEST_MUTANT"

// sound is the transport of TestMutant without a mutation.
const sound = "sound"

// TestTheSuiteFindsBrokenTransports runs each mutant in a process of its own, where its rules have to fail. Without a
// mutation they pass. Each rule of the suite has a mutant.
func TestTheSuiteFindsBrokenTransports(t *testing.T) {
	rules := transporttest.RuleNames()
	require.Equal(t, slices.Sorted(slices.Values(rules)),
		slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(mutants))...)))),
		"a rule that no mutant breaks may find nothing, and one that is not there finds nothing")
	out, err := suiteOver(sound, rules)
	require.NoError(t, err, "without a mutation the tests pass:\n%s", out)
	for _, rule := range countable(rules) {
		require.Contains(t, out, "--- PASS: TestMutant/"+rule+" ")
	}
	for name, rules := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := countable(rules)
			if len(rules) == 0 {
				t.Skip("allocations are not counted under the race detector")
			}
			out, err := suiteOver(name, rules)
			require.Error(t, err, "the suite did not notice")
			for _, rule := range rules {
				require.Contains(t, out, "--- FAIL: TestMutant/"+rule+" ", "the suite did not notice:\n%s", out)
			}
			require.NotContains(t, out, "test timed out")
			require.NotContains(t, out, "panic: ", "the suite itself broke, and the rules behind it did not run")
		})
	}
}

// countable leaves out rules about allocations under the race detector, which allocates on its own.
func countable(rules []string) []string {
	return slices.DeleteFunc(slices.Clone(rules), func(rule string) bool {
		return transporttest.RaceEnabled && slices.Contains(ofAllocations, rule)
	})
}

// suiteOver runs rules of the suite over a mutant in another process.
func suiteOver(mutant string, rules []string) (out string, err error) {
	suite := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestMutant$/^("+strings.Join(rules, "|")+")$",
		"-test.timeout", "300s")
	suite.Env = append(os.Environ(), mutantVariable+"="+mutant)
	text, err := suite.CombinedOutput()
	return string(text), err
}

// TestMutant is the suite over the mutant that the variable names.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip("only for TestTheSuiteFindsBrokenTransports")
	}
	patience := time.Second // a mutant may hang
	if name == sound {
		patience = 0 // the suite's own
	}
	transporttest.Run(t, func(t *testing.T) transporttest.Harness {
		n := sim.NewInline(1)
		gpu := devicetest.New(t, mem.Cuda, 1)
		var local *transporttest.Device
		var first *mutant // the one that submits
		if name == onDevice {
			local = transporttest.OnPlatform(gpu, 0)
		}
		where := func(node *transporttest.Node, rail transport.Rail) sim.Where {
			return sim.Where{A: node.Peer.Address, Rail: int(rail.Index)}
		}
		return transporttest.Harness{Patience: patience, Local: local, Partial: partial,
			Hold: func(_ *testing.T, node *transporttest.Node) func() {
				n.Stop(node.Peer.Address)
				return func() { n.Continue(node.Peer.Address) }
			},
			CutRail: func(_ *testing.T, node *transporttest.Node, rail transport.Rail) {
				n.Down(where(node, rail))
				n.Up(where(node, rail))
			},
			Blackhole: func(_ *testing.T, node *transporttest.Node, rail transport.Rail) func() {
				n.Cut(where(node, rail))
				return func() { n.Heal(where(node, rail)) }
			},
			Warm: func(t *testing.T) {
				if name == sound { // the others have no such library, or do not warm it up
					openLibrary()
				}
			},
			Replace: func(_ *testing.T, node *transporttest.Node, key transport.LocalKey, serve bool) {
				m := node.Transport.(*mutant)
				serve = serve || m.name == "serves a replaced descriptor"
				if m.name == "drops slices at a replacement" {
					first.finishFakes(transport.Replaced("mutant"))
				}
				m.Transport.(interface {
					Replace(transport.LocalKey, bool)
				}).Replace(key, serve)
			},
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				m := &mutant{name: name, node: c.Name, gpu: gpu, sink: c.Sink, seen: map[uint64]bool{},
					links: map[uint32]transport.Link{}, selves: map[transport.Link]bool{},
					detached: map[transport.Link]bool{}, up: map[transport.Rail]bool{},
					keys: map[uintptr]registered{}}
				if c.Name == "a" {
					first = m
				}
				return m.open(t, c, n)
			}}
	})
}

// open opens the inner transport. Its settings, and the optional interfaces of the mutant, are those of its rule.
func (m *mutant) open(t *testing.T, c transporttest.Config, n *sim.Network) transport.Transport {
	_, rule, _ := strings.Cut(t.Name(), "/")
	s := sim.Settings{Network: n, Rails: c.Rails, SlicesMax: 256, Vectors: true, Inline: true, Platform: m.gpu,
		Reaches: secondRail, Holds: strings.HasPrefix(rule, "Remapped")}
	s.Pairs[mem.Host][mem.Host], s.Pairs[mem.Cuda][mem.Host] = true, true
	if rule == "AWriteThatHasCompletedIsVisible" {
		s.Posts, s.Unflushed = time.Millisecond, m.name != sound
	}
	var factory transport.Factory = sim.Factory{Settings: s}
	queued := strings.HasPrefix(rule, "Sleepers") || strings.HasPrefix(rule, "Poll")
	if queued {
		factory = transporttest.Queued{Factory: factory}
	}
	inner, err := factory.Open(t.Context(), nil, c.Host, mutantSink{c.Sink, m})
	require.NoError(t, err)
	if queued {
		return &sleeper{inner.(parker), m.name}
	}
	if m.name == sound || m.name == "keeps a library's descriptor" {
		openLibrary()
	}
	m.Transport, m.Inliner, m.Notifier = inner, inner.(transport.Inliner), inner.(transport.Notifier)
	m.Matcher = inner.(transport.Matcher)
	if m.name == "logs an error of its own" {
		c.Host.Log().Error("mutant: internal error")
	}
	switch rule {
	case "AStoppedPeerGoesOnWhereItWas":
		return speaker{m}
	case "WitnessesHaveHeardOfWhoAnswers":
		return hearer{m}
	case "AllocatedMemoryIsZeroedAndWorks":
		return allocator{m}
	}
	return m
}

// mutant is a simulated transport with one fault in it. Faults that need time keep work for the next call.
type mutant struct {
	transport.Transport
	transport.Inliner
	transport.Notifier
	transport.Matcher
	sink transport.Sink
	name string
	node string // of the suite: the first is "a"
	gpu  *devicetest.Platform

	mu      sync.Mutex
	later   []func()
	seen    map[uint64]bool
	ends    int
	submits atomic.Int32
	lock    sync.Mutex
	junk    [][]byte
	fake    []*transport.Slice
	gone    bool
	closed  bool

	links    map[uint32]transport.Link // by index, the newest
	selves   map[transport.Link]bool   // links to oneself
	detached map[transport.Link]bool
	up       map[transport.Rail]bool

	all       []transport.LocalKey
	keys      map[uintptr]registered // by address
	forgotten transport.RemoteKey
	alias     map[transport.RemoteKey]transport.RemoteKey
}

// catchUp runs the postponed functions.
func (m *mutant) catchUp() {
	m.mu.Lock()
	todo := m.later
	m.later = nil
	m.mu.Unlock()
	for _, f := range todo {
		f()
	}
}

func (m *mutant) putOff(f func()) {
	m.mu.Lock()
	m.later = append(m.later, f)
	m.mu.Unlock()
}

// Remap is the inner transport's, which holds pages.
func (m *mutant) Remap(ctx context.Context, key transport.LocalKey, now transport.Remapped) error {
	if m.name == "keeps the old pages" {
		return nil
	}
	return m.Transport.(transport.Remapper).Remap(ctx, key, now)
}

func (m *mutant) Submit(list []*transport.Slice) int {
	m.catchUp()
	if pretends := pretended[m.name]; pretends != nil {
		return m.pretend(list, pretends)
	}
	switch m.name {
	case "takes what nobody gave":
		if len(list) == 0 {
			return 1
		}
	case "holds a lock in Complete":
		m.lock.Lock()
		defer m.lock.Unlock()
	case "allocates":
		m.junk = append(m.junk[:0], make([]byte, 64+len(list)))
	case "accepts stale rails":
		if len(list) == 1 && m.Transport.Submit(list) == 0 {
			m.sink.Complete([]transport.Completion{{Slice: list[0], Id: list[0].Id,
				Err: errs.New(errs.Lost, "mutant", "stale")}})
			return 1
		}
	case "ends the rail under a siege":
		if m.submits.Add(1) == 4 {
			m.Transport.Fence(list[0].Rail)
		}
	case "drops slices at a replacement":
		if len(list) > 1 {
			return m.putAside(list)
		}
	case "forgets what is outstanding", "withdraws the neighbours":
		if len(list) >= 30 {
			return m.putAside(list)
		}
	case "withdraws by word alone":
		for _, s := range list { // nothing is sent before the next call
			c := *s
			m.putOff(func() { copyOver(m, &c) })
		}
		m.putAside(list)
		if len(list) < 20 { // the second look
			m.finishFakes(nil)
		}
		return len(list)
	}
	for _, s := range list {
		switch m.name {
		case "begins with the first piece":
			s.First = 0
		case "dates slices by their Submit":
			s.Epoch = ^transport.ForGood
		case "dates slices of later links":
			if s.Rail.Link.Index() > 0 {
				s.Epoch = ^transport.ForGood
			}
		case "gives a forgotten key again":
			if key, is := m.alias[s.RemoteKey]; is {
				s.RemoteKey = key
			}
		}
	}
	n := m.Transport.Submit(list)
	if m.name == "touches what it did not accept" {
		for _, s := range list[n:] {
			s.Scratch[3] = 1
		}
	}
	return n
}

// Inline is the inner transport's where the mutation is elsewhere.
func (m *mutant) Inline(list []*transport.Slice) bool {
	switch m.name {
	case "dates inline slices by the call":
		for _, s := range list {
			s.Epoch = ^transport.ForGood
		}
	case "allocates inline":
		m.junk = append(m.junk[:0], make([]byte, 64+len(list)))
	case "carries inline on a detached link":
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.detached[list[0].Rail.Link] {
			return true
		}
	}
	done := m.Inliner.Inline(list)
	switch {
	case m.name == "believes what it is told inline":
		return true
	case m.name == "completes what it did inline" && done:
		m.sink.Complete([]transport.Completion{{Slice: list[0], Id: list[0].Id, Bytes: list[0].Length}})
	}
	return done
}

// putAside accepts slices and does nothing.
func (m *mutant) putAside(list []*transport.Slice) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fake = append(m.fake, list...)
	return len(list)
}

// finishFakes completes the slices that were put aside.
func (m *mutant) finishFakes(err *errs.Error) {
	m.mu.Lock()
	list := m.fake
	m.fake = nil
	m.mu.Unlock()
	for _, s := range list {
		c := transport.Completion{Slice: s, Id: s.Id, Err: err}
		if err == nil {
			c.Bytes = s.Length
		}
		m.sink.Complete([]transport.Completion{c})
	}
}

// copyOver carries out a slice behind everybody's back.
func copyOver(m *mutant, s *transport.Slice) {
	s.Scratch = [4]uint64{}
	m.mu.Lock()
	m.seen[s.Id] = true
	m.mu.Unlock()
	m.Transport.Submit([]*transport.Slice{s})
}

func (m *mutant) Withdraw(list []*transport.Slice) {
	switch m.name {
	case "withdraws the completed":
		for _, s := range list {
			m.sink.Complete([]transport.Completion{{Slice: s, Id: s.Id,
				Err: errs.New(errs.Withdrawn, "mutant", "as you wish")}})
		}
	case "withdraws by word alone":
		m.finishFakes(errs.New(errs.Withdrawn, "mutant", "my word on it"))
	case "withdraws the neighbours":
		m.finishFakes(errs.New(errs.Withdrawn, "mutant", "all or nothing"))
	}
	m.Transport.Withdraw(list)
}

func (m *mutant) Attach(p transport.Peer) (transport.Link, error) {
	if m.name == "waits in Attach" {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		<-ctx.Done()
	}
	link, err := m.Transport.Attach(p)
	m.mu.Lock()
	m.links[link.Index()] = link
	m.selves[link] = p.Self
	m.mu.Unlock()
	return link, err
}

// newest is the link that has the index of another one now.
func (m *mutant) newest(l transport.Link) transport.Link {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.links[l.Index()]
}

func (m *mutant) Detach(l transport.Link) {
	m.mu.Lock()
	m.detached[l] = true
	m.mu.Unlock()
	switch m.name {
	case "detaches by index":
		m.Transport.Detach(l) // a stale one is counted
		m.Transport.Detach(m.newest(l))
		return
	case "keeps the slots of the detached":
		return
	}
	m.Transport.Detach(l)
}

func (m *mutant) Stale() uint64 {
	if m.name == "does not count stale links" {
		return 0
	}
	return m.Transport.Stale()
}

// Serve is the inner transport's, which takes no calls.
func (m *mutant) Serve(ctx context.Context, from transport.Peer, message []byte) ([]byte, error) {
	if m.name == "closes at a word of a stranger" {
		_ = m.Close(ctx)
	}
	return m.Transport.Serve(ctx, from, message)
}

func (m *mutant) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	switch m.name {
	case "leaks a goroutine":
		go func() { select {} }()
	case "leaks a descriptor":
		_, _, _ = os.Pipe()
	}
	return m.Transport.Close(ctx)
}

func (m *mutant) Notify(l transport.Link, message []byte, done func(*errs.Error)) bool {
	if m.name == "acknowledges before the peer" {
		done(nil)
		done = func(*errs.Error) {}
	}
	return m.Notifier.Notify(l, message, done) && m.name != "refuses what it sends"
}
