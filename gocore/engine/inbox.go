package engine

import (
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// inbox takes completions and notices for the core from any goroutine. Pushing takes a few nanoseconds under a lock of
// its own, so a transport never waits for a step of the core. Completions, which come by the thousand, have their own
// array; the rest is rare and kept in order as notices.
//
// Bounds: completions by the slices that are outstanding, refusals by those in outboxes, notices by rails, peers
// and gates, fences by fencesMax: a hostile owner may announce them as fast as its network allows.
type inbox struct {
	filled atomic.Bool // something is inside; readable without the lock

	mu          sync.Mutex
	completions []transport.Completion
	origins     []origin // of the completions, in their order
	refused     []*transport.Slice
	asked       []*transport.Slice // the transport was asked to withdraw these
	notices     []notice
	fences      map[dispatch.RegionKey]transport.Epoch // the newest of each region
}

// fencesMax bounds the fenced regions that wait for the next step. More are dropped: their owners refuse the slices one
// by one.
const fencesMax = 1024

// notice is a rare event: about a rail, a link or a peer.
type notice struct {
	kind  noticeKind
	link  plan.LinkID
	peer  uint32
	rail  transport.Rail
	info  transport.RailInfo
	cause *errs.Error
	batch dispatch.BatchID

	key   transport.RemoteKey // of noticeFenced, with its epoch
	epoch transport.Epoch

	gate      dispatch.GateID // of noticeGate
	ticket    uint64          // of a sync
	transport uint8           // of noticeHeard
	signs     transport.Signs // of noticeHeard
	at        clock.Time      // of noticeProbed: the round trip
}

type noticeKind uint8

const (
	noticeReady noticeKind = iota
	noticeProgress
	noticeRailUp
	noticeRailDown
	noticeLinkDown
	noticePeerGone
	noticeAnswered  // by a peer, over the control plane
	noticeHeard     // the answer to a doubt
	noticeProbed    // and to a probe: cause is nil when the rail answered
	noticeNotified  // the notification of a batch was taken, or cause says why not
	noticeRefreshed // the engine has asked a peer for its description
	noticeFenced    // a peer has fenced a region
	noticeGate      // the work of a stream is done, or cause says why it will not be
	noticeSynced    // a file of a batch is on stable storage, or cause says why not
)

// origin is the transport of n completions.
type origin struct {
	transport uint8
	n         int
}

func (b *inbox) complete(from uint8, list []transport.Completion) {
	b.mu.Lock()
	b.completions = append(b.completions, list...)
	if last := len(b.origins) - 1; last >= 0 && b.origins[last].transport == from {
		b.origins[last].n += len(list)
	} else {
		b.origins = append(b.origins, origin{from, len(list)})
	}
	b.filled.Store(true)
	b.mu.Unlock()
}

func (b *inbox) refuse(list []*transport.Slice) {
	b.mu.Lock()
	b.refused = append(b.refused, list...)
	b.filled.Store(true)
	b.mu.Unlock()
}

func (b *inbox) withdrew(list []*transport.Slice) {
	b.mu.Lock()
	b.asked = append(b.asked, list...)
	b.filled.Store(true)
	b.mu.Unlock()
}

func (b *inbox) notice(n notice) {
	b.mu.Lock()
	if n.kind == noticeFenced {
		b.fencedLocked(dispatch.RegionKey{Link: n.link, Key: n.key}, n.epoch)
	} else {
		b.notices = append(b.notices, n)
	}
	b.filled.Store(true)
	b.mu.Unlock()
}

func (b *inbox) fencedLocked(at dispatch.RegionKey, epoch transport.Epoch) {
	if b.fences == nil {
		b.fences = map[dispatch.RegionKey]transport.Epoch{}
	}
	if known, is := b.fences[at]; is || len(b.fences) < fencesMax {
		b.fences[at] = max(known, epoch)
	}
}

// swap exchanges the contents with the emptied arrays of spare. Only the holder of the engine's mutex calls it.
func (b *inbox) swap(spare *inbox) {
	b.mu.Lock()
	b.completions, spare.completions = spare.completions[:0], b.completions
	b.origins, spare.origins = spare.origins[:0], b.origins
	b.refused, spare.refused = spare.refused[:0], b.refused
	b.asked, spare.asked = spare.asked[:0], b.asked
	b.notices, spare.notices = spare.notices[:0], b.notices
	b.fences, spare.fences = spare.fences, b.fences
	b.filled.Store(false)
	b.mu.Unlock()
}
