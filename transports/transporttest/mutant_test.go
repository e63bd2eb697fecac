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

// mutants are transports that break one rule each, and the test of the suite that has to find it.
var mutants = map[string]string{
	"speaks for a stopped peer":       "AStoppedPeerGoesOnWhereItWas",
	"completes twice":                 "EveryAcceptedSliceCompletesExactlyOnce",
	"completes before it is visible":  "AWriteThatHasCompletedIsVisible",
	"never completes the third slice": "EveryAcceptedSliceCompletesExactlyOnce",
	"completes again much later":      "ARecordMayBecomeAnotherSlice",
	"does not say which life it was":  "ARecordMayBecomeAnotherSlice",
	"completes before it writes":      "NothingIsWrittenAfterCompletion",
	"reads the source late":           "SourcesAreNotReadAfterCompletion",
	"touches what it did not accept":  "SubmitTakesAPrefixAndLeavesTheRest",
	"owes Ready":                      "SubmitTakesAPrefixAndLeavesTheRest",
	"accepts stale rails":             "StaleGenerationIsRefused",
	"holds a lock in Complete":        "CompleteMaySubmit",
	"forgets permissions":             "PermissionsOfRegionsAreKept",
	"forgets Revoke":                  "AfterRevokeNothingTouchesTheRegion",
	"closes at a fence":               "AFenceLetsNewOnesPass",
	"dates slices by their Submit":    "WhatBeganBeforeAFenceStaysOutside",
	"dates inline slices by the call": "WhatBeganBeforeAFenceStaysOutside",
	"fences everybody":                "AFenceOfOnePeerLeavesOthersAlone",
	"fences whom it should shut out":  "RevokeOfOnePeerHoldsOnLaterRailsAndLinks",
	"fences by word alone":            "ReadsCutOffByAFenceShowTheBytesOfBefore",
	"writes a byte too many":          "AnySizeAndAlignment",
	onDevice:                          "AnySizeAndAlignment",
	"withdraws by word alone":         "WithdrawnSlicesNeverLand",
	"withdraws the completed":         "WithdrawOfCompletedIsIgnored",
	"leaks a goroutine":               "CloseLeavesNothing",
	"leaks a descriptor":              "CloseLeavesNothing",
	"keeps a library's descriptor":    "CloseLeavesNothing",
	"takes what is not here":          "MemoryThatIsNotHereLeavesTheRestUsable",
	"blames who asked":                "MemoryThatIsNotHereLeavesTheRestUsable",
	"blames the rail":                 "AccessOutsideARegionIsRefusedAndTheRailLivesOn",
	"acknowledges before the peer":    "NotificationsWaitForRoom",
	"refuses what it sends":           "NotificationsArriveOnceAndAreAcknowledged",
	"allocates":                       "SubmitToCompletionAllocatesNothing",
	"waits in Attach":                 "AttachReturnsAtOnceAndSaysThatNobodyIsThere",
	"begins with the first piece":     "PiecesArriveWhereTheyBelong",
	"believes what it is told inline": "InlineRefusesWhatSubmitWould",
	"completes what it did inline":    "InlineIsDoneWhenItReturns",
	"takes a link by its index":       "StaleLinksAreRefusedAndCounted",
	"detaches by index":               "StaleLinksAreRefusedAndCounted",
	"does not count stale links":      "StaleLinksAreRefusedAndCounted",
	"keeps the slots of the detached": "AttachAndDetachManyTimes",
	"keeps the old pages":             "RemappedPagesAreReachedAndOldOnesAreNot",
	"moves what is gone":              "MemoryThatIsGoneThereFailsItsSlicesOnly",
	"ends the rail of what is gone":   "MemoryThatIsGoneHereFailsItsSlicesOnly",
	"blames the other end":            "MemoryThatIsGoneHereFailsItsSlicesOnly",
	"forgets the neighbours":          "MemoryThatGoesMeanwhileFailsItsSlicesOnly",
	"ends the rail under a siege":     "MemoryThatGoesMeanwhileFailsItsSlicesOnly",
	"logs an error of its own":        "InfoIsComplete",
	"reads nothing when it is woken":  "SleepersFindWhatWokeThem",
	"has nothing to sleep on":         "SleepersFindWhatWokeThem",
	"hands nothing back":              "SleepersFindWhatWokeThem",
	"sleeps for ever":                 "SleepersFindWhatWokeThem",
	"gives a forgotten key again":     "AForgottenKeyNamesNoOtherRegion",
	"serves a replaced descriptor":    "AReplacedDescriptorIsImportedAgain",
	"blames the rail for a new key":   "AReplacedDescriptorIsImportedAgain",
	"keeps the key of the replaced":   "AReplacedDescriptorIsImportedAgain",
	"names every rail":                "KeysWorkOnTheRailsOfTheirMatch",
	"keeps its keys to itself":        "KeysWorkOnTheRailsOfTheirMatch",
	"drops slices at a replacement":   "SlicesUnderWayOutliveAReplacedDescriptor",
}

// onDevice writes a byte too many into the memory of a device, which no processor can touch.
const onDevice = "writes a byte too many on a device"

// mutantVariable names the mutant that a process runs.
const mutantVariable = "TENT_TEST_MUTANT"

// sound is the transport of TestMutant without a mutation.
const sound = "sound"

// TestTheSuiteFindsBrokenTransports runs each mutant in a process of its own, where the suite has to fail. Without a
// mutation, all of these tests pass.
func TestTheSuiteFindsBrokenTransports(t *testing.T) {
	rules := slices.Compact(slices.Sorted(maps.Values(mutants)))
	out, err := suiteOver(sound, strings.Join(rules, "|"))
	require.NoError(t, err, "without a mutation the tests pass:\n%s", out)
	for _, rule := range rules {
		require.Contains(t, out, "--- PASS: TestMutant/"+rule+" ")
	}
	for name, rule := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "allocates" && transporttest.RaceEnabled {
				t.Skip("allocations are not counted under the race detector")
			}
			out, err := suiteOver(name, rule)
			require.Error(t, err, "the suite did not notice")
			require.Contains(t, out, rule)
			require.NotContains(t, out, "test timed out")
			require.NotContains(t, out, "panic: ", "the suite itself broke, and the rules behind it did not run")
		})
	}
}

// suiteOver runs rules of the suite over a mutant in another process.
func suiteOver(mutant, rules string) (out string, err error) {
	suite := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestMutant$/^("+rules+")$", "-test.timeout", "60s",
		"-test.failfast")
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
	transporttest.Run(t, func(t *testing.T) transporttest.Harness {
		n := sim.NewInline(1)
		gpu := devicetest.New(t, mem.Cuda, 1)
		var local *transporttest.Device
		var first *mutant // the one that submits
		if name == onDevice {
			local = transporttest.OnPlatform(gpu, 0)
		}
		return transporttest.Harness{Patience: time.Second, Local: local, Partial: partial,
			Hold: func(_ *testing.T, node *transporttest.Node) func() {
				n.Stop(node.Peer.Address)
				return func() { n.Continue(node.Peer.Address) }
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
				m := &mutant{name: name, gpu: gpu, sink: c.Sink, seen: map[uint64]bool{},
					links: map[uint32]transport.Link{}}
				s := sim.Settings{Network: n, Rails: c.Rails, SlicesMax: 256, Vectors: true, Inline: true,
					Platform: gpu, Reaches: secondRail,
					Holds: strings.HasPrefix(t.Name(), "TestMutant/Remapped")}
				s.Pairs[mem.Host][mem.Host], s.Pairs[mem.Cuda][mem.Host] = true, true
				if t.Name() == "TestMutant/AWriteThatHasCompletedIsVisible" {
					s.Posts, s.Unflushed = time.Millisecond, name != sound
				}
				if strings.HasPrefix(t.Name(), "TestMutant/Sleepers") {
					queued := transporttest.Queued{Factory: sim.Factory{Settings: s}}
					inner, err := queued.Open(t.Context(), nil, c.Host, c.Sink)
					require.NoError(t, err)
					return &sleeper{inner.(parker), name}
				}
				inner, err := sim.Factory{Settings: s}.Open(t.Context(), nil, c.Host, mutantSink{c.Sink, m})
				require.NoError(t, err)
				if first == nil {
					first = m
				}
				if name == sound || name == "keeps a library's descriptor" {
					openLibrary()
				}
				m.Transport, m.Inliner, m.Notifier = inner, inner.(transport.Inliner), inner.(transport.Notifier)
				m.Matcher = inner.(transport.Matcher)
				if name == "logs an error of its own" {
					c.Host.Log().Error("mutant: internal error")
				}
				if t.Name() == "TestMutant/AStoppedPeerGoesOnWhereItWas" {
					return speaker{m}
				}
				return m
			}}
	})
}

// mutant is a simulated transport with one fault in it. Faults that need time keep work for the next call.
type mutant struct {
	transport.Transport
	transport.Inliner
	transport.Notifier
	transport.Matcher
	sink transport.Sink
	name string
	gpu  *devicetest.Platform

	mu      sync.Mutex
	later   []func()
	seen    map[uint64]bool
	ends    int
	submits atomic.Int32
	lock    sync.Mutex
	junk    [][]byte
	fake    []*transport.Slice
	links   map[uint32]transport.Link // by index, the newest
	gone    bool

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
	switch m.name {
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
			m.mu.Lock()
			m.fake = append(m.fake, list...)
			m.mu.Unlock()
			return len(list)
		}
	case "withdraws by word alone":
		for _, s := range list { // nothing is sent before the next call
			c := *s
			m.putOff(func() { copyOver(m, &c) })
		}
		m.mu.Lock()
		m.fake = append(m.fake, list...)
		m.mu.Unlock()
		if len(list) < 40 { // the second look
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
	if m.name == "dates inline slices by the call" {
		for _, s := range list {
			s.Epoch = ^transport.ForGood
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
	}
	m.Transport.Withdraw(list)
}

func (m *mutant) Register(ctx context.Context, r mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	switch {
	case m.name == "forgets permissions":
		r.Permission = mem.GlobalReadWrite
	case m.name == "takes what is not here" && r.Kind != mem.Cuda:
		r.Kind = mem.Host
	case m.name == "blames who asked" && r.Kind == mem.Tpu:
		return 0, nil, errs.New(errs.InvalidArgument, "mutant", "no memory of a TPU")
	}
	return m.Transport.Register(ctx, r)
}

func (m *mutant) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	switch m.name {
	case "forgets Revoke":
		return nil
	case "closes at a fence":
		epoch = transport.ForGood
	case "fences everybody":
		peer = nil
	case "fences whom it should shut out":
		if epoch == transport.ForGood && peer != nil {
			epoch = 1
		}
	case "fences by word alone":
		if epoch != transport.ForGood {
			return nil
		}
	}
	return m.Transport.Revoke(ctx, key, peer, epoch)
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

func (m *mutant) Close(ctx context.Context) error {
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
