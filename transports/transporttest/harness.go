package transporttest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Harness says how the suite gets engines' worth of one transport, and how it can disturb them here. The zero
// value of everything but Open is fine: rules that need a missing ability are skipped by name.
type Harness struct {
	// Check says why the transport cannot work on this machine, as its Factory.Check does; nil: it always can.
	Check func() error
	// Open starts one engine's worth of the transport. The suite closes it.
	Open func(t *testing.T, c Config) transport.Transport

	// Patience is how long a wait of the suite may last before the test fails. [10s]
	Patience time.Duration
	// Local and Remote are the memories of the operands. [memory of the host]
	Local, Remote *Device
	// Protects is the protection that each node demands. [transport.Auth]
	Protects transport.Protection
	// Join puts a node behind a control plane of its own, before its transport is opened, and gives its Peer the ID
	// there. The plane hands calls of other nodes to the node's Transport. nil: calls go straight to Serve.
	Join func(t *testing.T, n *Node) Plane
	// Pool is where operands in memory of the host come from. [anonymous memory]
	Pool Pool

	// Folder is where files that stand for peers' memory are made, for transports with Info.Files. [os.TempDir]
	Folder string
	// Hold makes a node's process stand still, as SIGSTOP does, until release is called: nothing arrives there, nothing
	// leaves. nil: cannot be done here.
	Hold func(t *testing.T, n *Node) (release func())
	// CutRail breaks a rail hard, as a reset of its connections does. It comes back by itself.
	// A transport that has it has two rails where it is asked for them.
	CutRail func(t *testing.T, n *Node, rail transport.Rail)
	// Blackhole makes a rail swallow everything in both directions, silently, until heal is called.
	Blackhole func(t *testing.T, n *Node, rail transport.Rail) (heal func())
	// Warm opens all that a vendor's library keeps for the process (rule f) before the suite counts. nil: nothing.
	Warm func(t *testing.T)
	// Replace gives a region of the node another descriptor, of which Host.Describe hears. Slices by an older one are
	// served with serve, else refused as Replaced. nil: cannot be done here.
	Replace func(t *testing.T, n *Node, key transport.LocalKey, serve bool)
	// Partial is a size of memory that Open's transport can use on some of its two rails only, 0 if that cannot be
	// made here.
	Partial uint64
	// SilentClose says that a peer's Close cannot be noticed (there is nothing like a connection).
	SilentClose string // the reason, "" if it is noticed
	// HearsLater says why peers hear of a fence after Revoke has returned, "" if before.
	HearsLater string
	// Allocates says why there are allocations between Submit and completion, "" if there must be none.
	Allocates string
	// Pinned says why memory that its user takes away is still reached, "" if slices notice: a NIC has its pages.
	Pinned string
	// NoSelf says why there are no links to oneself, "" if there are.
	NoSelf string
}

// Plane is the control plane of one node.
type Plane struct {
	Address string // where it answers
	Call    func(ctx context.Context, to transport.Peer, message []byte) ([]byte, error)
	Close   func()
}

// Config is Open's view of the suite.
type Config struct {
	Name  string         // of the node, unique in its test
	Host  transport.Host // routes calls between the nodes of one test
	Sink  transport.Sink // records
	Rails int            // rails that the test would like towards each peer; fewer do
}

// Device is a memory that the suite cannot touch directly. OnPlatform makes one.
type Device struct {
	Kind     mem.Kind
	Location mem.Location
	Allocate func(t *testing.T, size int) (addr uintptr)
	Free     func(addr uintptr, size int) // nil: it need not be
	Load     func(into []byte, addr uintptr)
	Store    func(addr uintptr, from []byte)

	Alignment uint64 // of operands; 0: the transport's, and odd addresses where it takes any
}

// OnPlatform is the memory of a platform's device. A copy that fails is a panic: the test cannot know its bytes.
func OnPlatform(p device.Platform, ordinal int) *Device {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	return &Device{Kind: p.Kind(), Location: mem.Location(fmt.Sprintf("%v:%d", p.Kind(), ordinal)),
		Allocate: func(t *testing.T, size int) uintptr {
			addr, err := p.Allocate(ordinal, uint64(size))
			require.NoError(t, err)
			return addr
		},
		Free:  func(addr uintptr, size int) { must(p.Free(addr, uint64(size))) },
		Load:  func(into []byte, addr uintptr) { must(p.Copy(mem.AddressOf(into), addr, uint64(len(into)))) },
		Store: func(addr uintptr, from []byte) { must(p.Copy(addr, mem.AddressOf(from), uint64(len(from)))) }}
}

// rule is one test of the suite.
type rule struct {
	name  string
	needs func(h Harness, tr transport.Transport) string // why it cannot be tested here, "" if it can
	test  func(t *testing.T, h Harness)
}

// rules is the suite: the one list of tests, in their order, with the needs of each.
func rules() []rule {
	return slices.Concat(basicRules(), submitRules(), dataRules(), refusalRules(), quietRules(), withdrawRules(),
		revokeRules(), lostRules(), replaceRules(), pieceRules(), inlineRules(), lifeRules(), peerRules(), faultRules(),
		optionalRules(), parkRules(), loadRules())
}

// rulesOfBytes is the part of the suite that depends on the way of the bytes: on a memory, a depth, a queue's order.
func rulesOfBytes() []rule {
	return slices.Concat(dataRules(), refusalRules(), quietRules(), withdrawRules(), revokeRules(), replaceRules(),
		pieceRules(), inlineRules(), loadRules())
}

// rulesOfAdmission is the part of the suite that depends on the identity of peers. These are refused keys, access that
// is revoked from one peer, incarnations, and links.
func rulesOfAdmission() []rule {
	return slices.Concat(refusalRules(), revokeRules(), lifeRules(), peerRules())
}

// rulesOfThreads is the part of the suite in which goroutines of the test meet inside the transport.
func rulesOfThreads() []rule {
	return slices.DeleteFunc(rules(), func(r rule) bool {
		return !slices.Contains([]string{"BothDirectionsAtOnce", "SeveralThreadsAtOnce", "WithdrawUnderLoad",
			"EverythingAtOnce"}, r.name)
	})
}

// wholeEnv makes Again run the whole suite when it is "all", as `make test-all` does.
const wholeEnv = "TENT_CONFORMANCE"

// Whole reports whether variants run the whole suite: in `make test-all`, and where skips.txt is renewed.
func Whole() bool { return os.Getenv(wholeEnv) == "all" || os.Getenv(rewriteEnv) != "" }

// Run runs the suite. harness is called for the suite and again for each test: a transport that shares a world of its
// own (a simulated network) makes one there, and its t.Cleanup runs after the suite's checks. Skipped rules must be in
// the list, skips.txt.
func Run(t *testing.T, harness func(t *testing.T) Harness) { run(t, harness, rules()) }

// Again runs the suite over a variant of a transport that Run has already seen: another memory, depth or path. Only the
// rules that depend on the way of the bytes are repeated; of these, the race detector's short run repeats the rules in
// which threads meet. TENT_CONFORMANCE=all repeats them all, and so does a run that renews skips.txt.
func Again(t *testing.T, harness func(t *testing.T) Harness) {
	switch {
	case Whole():
		run(t, harness, rules())
	case RaceEnabled && testing.Short():
		run(t, harness, rulesOfThreads())
	default:
		run(t, harness, rulesOfBytes())
	}
}

// Beside runs the suite over another way of a transport that Run sees in the same package. Ways have ends, faults and
// lost memory of their own, so all rules are run. The race detector's short run has the rules in which threads meet.
func Beside(t *testing.T, harness func(t *testing.T) Harness) {
	if RaceEnabled && testing.Short() && !Whole() {
		run(t, harness, rulesOfThreads())
		return
	}
	run(t, harness, rules())
}

// Admitted runs the rules that depend on the identity of peers, for harnesses with Join. TENT_CONFORMANCE=all runs the
// suite.
func Admitted(t *testing.T, harness func(t *testing.T) Harness) {
	if Whole() {
		run(t, harness, rules())
		return
	}
	run(t, harness, rulesOfAdmission())
}

func run(t *testing.T, harness func(t *testing.T) Harness, chosen []rule) {
	if h := harness(t); h.Check != nil {
		if err := h.Check(); err != nil {
			t.Skipf("this transport cannot work here: %v", err)
		}
	}
	skipped := newSkips(t)
	for _, r := range chosen {
		t.Run(r.name, func(t *testing.T) {
			skipped.ran++
			h := harness(t)
			if h.Patience == 0 {
				h.Patience = 10 * time.Second
			}
			if r.needs != nil {
				if why := missing(t, h, r); why != "" {
					skipped.add(r.name, why)
					t.Skip(why)
				}
			}
			r.test(t, h)
		})
	}
	skipped.check(t)
}

// missing opens a transport for a moment to ask for its abilities.
func missing(t *testing.T, h Harness, r rule) string {
	w := NewWorld(t, h)
	defer w.finish()
	return r.needs(h, w.Open("asked").Transport)
}
