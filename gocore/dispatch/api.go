package dispatch

import (
	"math"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// State of a task or a batch, with upstream's numbers.
type State uint8

// States. Initial is never seen after a submit. Canceled to Failed are terminal: the task is quiescent.
const (
	Initial   State = 0
	Pending   State = 1
	Invalid   State = 2
	Canceled  State = 3
	Completed State = 4
	TimedOut  State = 5
	Failed    State = 6
)

// Terminal reports whether a state never changes any more.
func (s State) Terminal() bool { return s >= Invalid }

func (s State) String() string {
	return [...]string{"INITIAL", "PENDING", "INVALID", "CANCELED", "COMPLETED", "TIMEOUT", "FAILED"}[s%7]
}

// Classes of priority, with upstream's numbers.
const (
	High       = qos.High
	Medium     = qos.Medium
	Low        = qos.Low
	ClassCount = qos.Classes
)

// BatchID is slot and generation (generation<<32 | slot): a stale one is an error, never somebody else's batch.
type BatchID uint64

// Slot is the index of a batch in tables that mirror the core's, for example the shared page that Python reads.
func (b BatchID) Slot() uint32 { return uint32(b) }

// Options are fixed for the life of a core. Zero values mean the default in brackets, where one is named.
type Options struct {
	Batches      int           // most batches alive at once [65536]
	Pending      int           // most requests that have not ended, parts of tasks each count [1<<20]
	Failovers    int           // max_failover_attempts: switches of route a task; 0: none
	Retries      int           // most rounds of one piece over the rails of one route, up to 255 [8]
	Stall        time.Duration // without progress while being served [30s]
	FenceHost    time.Duration // fence bound towards our own host [100ms]
	FenceNetwork time.Duration // fence bound towards other hosts [1s]
	FenceFile    time.Duration // fence bound of transfers with files [5s]
	WindowBytes  uint64        // in flight on one rail where the transport names none [4 MiB]
	WindowSlices int           // [256]
	Ageing       time.Duration // priority_promotion_timeout_us [10ms]
	Merge        bool          // merge_requests: neighbours that agree in everything share slices
	Transports   []string      // names by index, for events and errors

	LinkWait     time.Duration // a task waits at most this long for a link that has had no rail yet [500ms]
	Outage       time.Duration // and for a silent peer, whether rails are up or not [Stall; more means Stall]
	SilentAfter  time.Duration // a peer that owes answers and says nothing for so long is silent [500ms]
	RetryAfter   time.Duration // pause behind the first round; doubles with each, up to 128 times [1ms]
	SuspectAfter time.Duration // least silence of a rail while others of its peer go on, before it is suspected [5ms]
	CondemnAfter time.Duration // silence of a suspected rail before it is fenced [1s]
	AttemptLimit time.Duration // silence after which slices try another route, even if the whole peer is silent [10s]
	Rail         rail.Settings // thresholds of the rail monitor
	Rails        []RailOptions // by transport, instead of Ageing and Rail; a zero one changes nothing

	Devices []string // NICs that policies name, at most 64, by the bits of plan.Plan.Devices

	// Neighbours returns the view that the processes of this host share of a local NIC of a transport; nil without one.
	// The core calls it once a NIC, when its first rail comes up, under the caller's lock.
	Neighbours func(transport uint8, device string) qos.Neighbours
}

// RailOptions are the settings that each transport with rails has under its own branch.
type RailOptions struct {
	Ageing       time.Duration // priority_promotion_timeout_us
	OwnNode      bool          // not allow_cross_numa, see numa.go
	ByDeadline   bool          // deadline_bw_arbitration: order inside a class by slack, see deadline.go
	SuspectAfter time.Duration // instead of Options.SuspectAfter
	Penalties    [3]float64    // numa_penalties: factors of a rail's predicted time by its distance [1, 5, 10]
	PerEntry     bool          // priority_promotion_per_entry: as many turns in a time-out as requests wait
	Filter       qos.Filter    // zero: off
	Slots        qos.Slots     // zero: off; they need Options.Neighbours too
	rail.Settings
}

// withDefaults fills fields that are zero, some of them from the options of the core.
func (o RailOptions) withDefaults(core *Options) RailOptions {
	if o.Ageing <= 0 {
		o.Ageing = core.Ageing
	}
	if o.SuspectAfter <= 0 {
		o.SuspectAfter = core.SuspectAfter
	}
	if o.Penalties == [3]float64{} {
		o.Penalties = penaltiesUsual
	}
	o.Settings = o.Settings.WithDefaults()
	return o
}

// withDefaults fills fields that are zero.
func (o Options) withDefaults() Options {
	number := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	period := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	number(&o.Batches, 65536)
	number(&o.Pending, 1<<20)
	number(&o.Retries, 8)
	o.Retries = min(o.Retries, math.MaxUint8) // see piece.tries
	number(&o.WindowSlices, 256)
	period(&o.Stall, 30*time.Second)
	period(&o.FenceHost, 100*time.Millisecond)
	period(&o.FenceNetwork, time.Second)
	period(&o.FenceFile, 5*time.Second)
	period(&o.Ageing, 10*time.Millisecond)
	period(&o.LinkWait, 500*time.Millisecond)
	period(&o.Outage, o.Stall)
	period(&o.SilentAfter, 500*time.Millisecond)
	period(&o.RetryAfter, time.Millisecond)
	period(&o.SuspectAfter, 5*time.Millisecond)
	period(&o.CondemnAfter, time.Second)
	period(&o.AttemptLimit, 10*time.Second)
	if o.WindowBytes == 0 {
		o.WindowBytes = 4 << 20
	}
	return o
}

// LinkSpec describes a link when it is added.
type LinkSpec struct {
	Peer      uint32       // the engine's number of the peer
	Engine    transport.ID // or file that the peer is: those that are one share open withdrawals; zero: the only one
	PeerName  string
	Transport uint8
	Link      transport.Link
	Info      *transport.Info
	SameHost  bool
	Probes    bool // the transport is a Prober
}

// TaskSpec is one request, validated and planned. It is copied.
type TaskSpec struct {
	request.Terms // within their ranges; every route of the plan must be able to meet them
	Plan          *plan.Plan
	Local         uintptr
	Remote        uint64 // offset in the remote region
	Length        uint64
	Epoch         transport.Epoch // of the remote region's owner, as it is known when the task begins
	Gate          GateID          // of NewGate: the task begins when it opens; 0: at once
	ByAddress     bool            // the request named an address: it means any region that is there, see astray.go

	// Parts makes the task one of many equal parts, which lie at offsets from Local and Remote; Length is the bytes of
	// all. They must stay as they are until the batch is freed, and for ever if it ended dirty; tasks may share them.
	Parts *transport.Pieces
}

// SliceOver makes a used slice one of the task over a hop: the terms that travel, and the keys, as one range. The rail,
// the range and the id are the caller's to fill in. It writes field by field: a literal would be built elsewhere and
// copied, for each slice.
func (s *TaskSpec) SliceOver(hop *plan.Hop, to *transport.Slice) {
	to.Op, to.Checked, to.Class = hop.Op, s.Integrity != request.IntegrityNone, s.Class
	to.LocalKey, to.RemoteKey, to.Epoch = hop.LocalKey, hop.RemoteKey, s.Epoch
	to.Pieces, to.First = nil, 0
	to.Scratch = [4]uint64{}
}

// Status of one task.
type Status struct {
	State     State
	Dirty     bool
	Transport uint8 // of the current or last attempt
	Attempts  uint16
	Failovers uint16
	Bytes     uint64 // acknowledged; never falls
	Err       *errs.Error
}

// Summary of one batch: states aggregate as upstream's do (all COMPLETED; else any pending; else the worst of INVALID,
// CANCELED, TIMEOUT, FAILED in that order). An empty batch is COMPLETED.
type Summary struct {
	State      State
	Dirty      bool
	Tasks      int
	Pending    int
	Bytes      uint64
	Total      uint64
	Attempts   uint32
	Failovers  uint32
	Transports uint32      // bit by transport index
	Err        *errs.Error // of the first task that failed
	Trace      string      // the caller's name for the batch
	Moved      *errs.Error // why the latest failover was made
}

// Posting is work for one transport: slices of one rail, in the order in which they must be handed over.
type Posting struct {
	Transport uint8
	Link      plan.LinkID
	Rail      transport.Rail
	Slices    []*transport.Slice
}

// Effects are the orders of a step. The core owns the memory behind them and uses it again in the next step; the engine
// moves its share out while it holds the mutex.
type Effects struct {
	Submit      []Posting
	Withdraw    []Posting
	Fence       []Posting  // Slices empty
	AskLiveness []Question // look for unreported signs of life; Core.Liveness takes the answer
	Probe       []Question // ask over the rail itself; Core.Probed takes the answer
	Stale       []uint32   // peers with old descriptions; Core.Refreshed takes the answer
	Retired     []Retired  // keys that no slice carries any more
	Astray      []Astray   // tasks that may go to another region; Core.Relocate takes the answer
	Changed     []BatchID  // something visible changed; without repeats
	Ended       []BatchID  // the last task ended in this step; a batch may take more tasks and end again
	Deserted    []GateID   // their last task has ended before they opened
	Events      []event.Event
}

// Question is about a rail.
type Question struct {
	Transport uint8
	Link      plan.LinkID
	Rail      transport.Rail
}

// StageSpec describes a pool of equal buffers between two hops of a route. The same bytes have an address here and an
// offset in the region by which the hop before or behind names them; a route uses the one or the other or both.
type StageSpec struct {
	Slots     int
	SlotBytes uint64
	Local     uintptr // address of slot 0 where a hop has it as its local side
	Remote    uint64  // offset of slot 0 where a hop has it as its remote side
	Shared    bool    // by peers that ask for its use: none of them takes all slots
}

// Counters are kept by transport and class, under the engine's mutex; metrics renders them.
type Counters struct {
	Requests, Bytes, Failures    [2]uint64 // by transport.Op
	Canceled, TimedOut, Dirty    uint64
	Attempts, AttemptFailures    [2]uint64
	Retries, Reroutes, Withdrawn uint64
	Misses                       [MissedStages]uint64 // requests that a deadline has ended
	Infeasible                   uint64               // of these, requests that could not have made it
	Promotions                   uint64               // turns granted by ageing
	SlotWaits                    uint64               // waits for a slot of time of the host's processes
	QueueWait                    Histogram            // microseconds from submit to the first slice
	SlotWait                     Histogram            // microseconds of each of SlotWaits

	ByOp [2]OpHistograms // by transport.Op, as upstream's metrics split them; nothing sums them up a second time
}

// OpHistograms are kept for READ and WRITE apart, because upstream names them apart (tent_read_latency_us and so on).
type OpHistograms struct {
	Latency Histogram // microseconds from submit to end of a request that completed
	Attempt Histogram // microseconds of a slice, from acceptance to completion
	Sizes   Histogram // bytes of requests
}

// Histogram counts values by their power of two: Buckets[i] holds values v with bits.Len64(v) == i.
type Histogram struct {
	Buckets [64]uint64
	Sum     uint64
}
