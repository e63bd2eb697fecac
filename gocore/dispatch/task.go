package dispatch

import (
	"unsafe"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// task is one request under way, or one for each of its parts. Its bytes are fresh (from cursor on, never cut), in
// pieces, or acknowledged.
//
//	Submit -> waiting --first cut--> served --all acknowledged, nothing out--> COMPLETED
//	             |                     |
//	             | deadline, cancel, stall limit, permanent error, no route left: verdict
//	             v                     v
//	             +------> ending: nothing is cut any more, slices that are out are withdrawn
//	                        |  last completion: CANCELED, TIMEOUT or FAILED; COMPLETED if all bytes have arrived
//	                        +--fence bound------: the same and dirty; its slices are an open withdrawal of the peer
//
// A task with all of its bytes waits for its stragglers, slices that were sent again, as long as the stall limit says:
// nobody has asked for its end.
// State is PENDING until the very end, with any verdict.
type task struct {
	spec        TaskSpec
	batch       *batch
	run         *run
	queue       place                // of its link and class while it has fresh bytes, or of a stage
	watch       intrusive.Node[task] // served or ending
	pieces      intrusive.List[piece]
	moving      *moving // nil: it has one home, see homes.go
	failure     *errs.Error
	missing     []span // of a task with parts: bytes that were given up, see parts.go
	cursor      uint64 // bytes below were cut once
	acked       uint64
	submitted   clock.Time
	queued      clock.Time // when it, or a piece of it, last began to wait for its link, by the detector's clock
	progress    clock.Time // last acknowledgement, by the detector's clock; in ending, when that began
	replaced    clock.Time // first refusal of a key without a known successor, by the detector's clock; 0 for none
	index       uint32
	gathered    uint32      // the number of the latest list that has it, see gather
	barred      uint64      // rails of a link that have refused its keys, a bit each by index
	barredOn    plan.LinkID // that link
	outstanding int32       // pieces that are in slices handed out, replaced ones too
	attempts    uint16
	failovers   uint16
	route       uint8
	state       State
	verdict     State // how it will end; INITIAL while it is meant to complete
	dirty       bool
	astray      bool // it waits for Relocate
}

// live reports whether the task is still meant to complete.
func (t *task) live() bool { return t.state == Pending && t.verdict == Initial }

func (t *task) path() *plan.Route { return &t.spec.Plan.Routes[t.route] }

// begin is the first hop of the task's route, which its fresh bytes take.
func (t *task) begin() *plan.Hop { return &t.path().Hops[0] }

// attempt is one slice that was handed out. The transport's pointer to the slice is a pointer to the attempt.
//
// Attempts are allocated one by one and those that were withdrawn are left to the garbage collector: a withdrawal that
// is on its way to the transport may still look at them after their completion.
type attempt struct {
	transport.Slice // first
	rail            *railState
	flight          intrusive.Node[attempt]
	pieces          *piece
	gathered        transport.Pieces // those of its slice where a stage has one end of them
	started         clock.Time
	ahead           uint64     // bytes in flight on the rail when it was posted, its own among them
	active          uint64     // bytes in flight on the NIC then, its own included, of all processes that are known
	alone           bool       // nothing was in flight on the rail and its NIC when it was posted
	brought         uint64     // bytes of its class that the rail had carried when it was posted, see attempt.isPassed
	begun           clock.Time // started, by the detector's clock
	passed          clock.Time // since when others were seen to have passed it, by the detector's clock; 0: by none
	forgotten       bool       // see forgotten.go
	replaced        bool       // its pieces were sent again, see Core.replaceSlice
	state           attemptState
}

// attemptState says how far a slice has come. It only grows until the slice is back.
//
//	back --postSlice--> out --withdrawSlice--> withdrawing --WithdrawalSent--> withdrawn --endDirty--> open
//	 ^                   |                          |                              |                     |
//	 +-------------------+---Complete or Refuse-----+------------------------------+---------------------+
type attemptState uint8

// States of an attempt.
const (
	attemptBack        attemptState = iota // not handed out yet, or completed
	attemptOut                             // handed out
	attemptWithdrawing                     // its withdrawal is on its way to the transport
	attemptWithdrawn                       // Transport.Withdraw has returned: the local end is quiet
	attemptOpen                            // it has outlived its task: an open withdrawal of the peer
)

func attemptOf(s *transport.Slice) *attempt { return (*attempt)(unsafe.Pointer(s)) }

// run is a stretch of tasks of a batch that share a deadline, and with it one timer.
type run struct {
	timer timer
	batch *batch
	first int
	n     int
	alive int
}

// lateFor is the error of a task that misses its deadline; all of a peer share one.
func (c *Core) lateFor(t *task) *errs.Error {
	l := c.link(t.path().Across().Link)
	if l == nil {
		return errDeadline
	}
	if l.peer.late == nil {
		late := *errDeadline
		l.peer.late = late.OfPeer(l.peer.name)
	}
	return l.peer.late
}

var errDeadline = errs.New(errs.Timeout, "transfer", "the deadline has passed")

// expireRun ends tasks at their deadline; false means that the budget of the step is used up.
func (c *Core) expireRun(r *run, budget *int, now clock.Time) bool {
	for r.n > 0 {
		if *budget == 0 {
			return false
		}
		*budget--
		t := r.batch.tasks[r.first]
		r.first, r.n = r.first+1, r.n-1
		last := r.alive == 1 && t.state == Pending
		c.endTask(t, TimedOut, c.lateFor(t), now)
		if last && t.state != Pending {
			return true // with its last task the run itself has ended
		}
	}
	return true
}
