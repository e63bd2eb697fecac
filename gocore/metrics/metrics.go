// Package metrics turns counters into forms for people and machines: Prometheus' text format and a flat map.
//
// Counting itself is the core's business (dispatch.Counters, plain integers under the engine's mutex): it is always on.
// The engine copies them into a Snapshot when somebody asks; everything here works on that copy, so a scrape holds no
// lock, and two engines of a process share nothing: no metric lives in a global registry.
//
// Names, types and label values are upstream's wherever upstream has the metric, so that its dashboards work; the label
// "class" is added to them, and a sum over it is upstream's series. Two of upstream's families are missing on purpose:
// tent_deadline_mlu_permille predicts the load of a link from all that waits, which tent does not, and
// tent_stage_dispatch_us and tent_stage_transport_us measure hand-overs between threads that do not exist here
// (tent_transport_attempt_latency_us is the time of a slice).
//
// Buckets are powers of two, as the core counts them: from 1 us to 134 s, and from 63 bytes to 64 GiB. An upper bound
// is 2^i-1 because the core counts integers: values up to and including it are below the bound, exactly.
package metrics

import (
	"slices"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/transport"
)

// Snapshot is a copy of an engine's counters and gauges at one moment. The code that fills it owns it; rendering only
// reads.
type Snapshot struct {
	Version    string // of tent
	Protocol   string // of the control plane
	GoVersion  string
	Transports []Transport
	Failovers  []Failover
	Rails      []Rail

	Batches         int // alive
	PendingRequests int // that have not ended
	Regions         int
	RegisteredBytes uint64
	Segments        int // opened and not closed
	Peers           int // attached

	StageSlots int    // of all pools between two hops
	StageFree  int    // of these
	StageWaits uint64 // times that a request found a pool without a free slot

	Notifications  Notifications
	ReportsDropped uint64 // of traced transfers
	Refusals       []Refusals
	Insecure       bool // the engine admits anybody
}

// Refusals counts the refusals of one plane to peers: "control", or the name of a transport.
type Refusals struct {
	Plane  string
	Counts [transport.RefusalCount]uint64
}

// Transport holds the figures of one transport.
type Transport struct {
	Name        string
	Classes     [dispatch.ClassCount]dispatch.Counters
	Queued      [dispatch.ClassCount]int    // requests that wait for a rail, now
	QueuedBytes [dispatch.ClassCount]uint64 // and their bytes
	RailsUp     int
	RailsDown   int    // paused, condemned or not dialled
	RailErrors  uint64 // errors that counted against a rail
	Condemned   uint64 // rails given up for a while, ever
	SlowPaths   uint64 // times that a rail became slow
	Flushes     uint64 // sent so that acknowledged WRITEs become visible
	Strays      uint64 // completions of slices that were not outstanding
	StaleCalls  uint64 // calls that named a link that had ended, refused
	InFlight    uint64 // bytes handed to the transport and not completed, now
	Faults      int    // injected, in force now
	Struck      uint64 // times an injected fault has happened
	Ambient     uint64 // times an ambient one has
	Sharing     Sharing
}

// Sharing describes the NICs that a transport shares with other processes of the host, now; zero where it shares none.
type Sharing struct {
	Processes int // that share, this one among them
	Devices   []SharedDevice
}

// SharedDevice is a local NIC that processes share.
type SharedDevice struct {
	Device string
	Others uint64 // bytes that the others have in flight there
}

// railStates are the states of a rail, best first.
var railStates = []string{"up", "full", "suspected", "paused", "condemned", "down"}

// MergeRails joins rails of equal names to one, since they are one series: its totals are sums, its state the worst.
// Two peers may call themselves by one address, and their NICs by one name.
func MergeRails(list []Rail) []Rail {
	type key struct{ transport, peer, local, remote string }
	at := make(map[key]int, len(list))
	merged := list[:0]
	for _, r := range list {
		k := key{r.Transport, r.Peer, r.Local, r.Remote}
		i, there := at[k]
		if !there {
			at[k] = len(merged)
			merged = append(merged, r)
			continue
		}
		m := &merged[i]
		if slices.Index(railStates, r.State) > slices.Index(railStates, m.State) {
			m.State = r.State
		}
		m.Health, m.Slow = min(m.Health, r.Health), m.Slow || r.Slow
		m.Rate += r.Rate
		m.Bytes, m.Errors, m.InFlight = m.Bytes+r.Bytes, m.Errors+r.Errors, m.InFlight+r.InFlight
	}
	return merged
}

// Rail is one rail now, with its totals over all its generations.
type Rail struct {
	Transport, Peer, Local, Remote string
	State                          string // one of railStates
	Health                         int    // 0 to 1000
	Rate                           float64
	Bytes, Errors, InFlight        uint64
	Slow                           bool
}

// Failover counts the switches of tasks between two transports.
type Failover struct {
	From, To string
	Count    uint64
}

// Notifications are counted at both ends of an engine.
type Notifications struct {
	Sent     uint64 // acknowledged by the peer
	Received uint64
	Refused  uint64 // held back because the queue was full
	Waiting  int    // in the queue, now
}
