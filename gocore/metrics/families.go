package metrics

import (
	"slices"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/transport"
)

type kind uint8

const (
	counter kind = iota
	gauge
	histogram
)

// family is all series of one name.
type family struct {
	name    string
	help    string
	kind    kind
	labels  []string
	buckets span // of histograms
	samples func(*Snapshot, emit)
}

// sample is one series: a value, or a histogram.
type sample struct {
	labels    []string
	value     float64
	histogram *dispatch.Histogram
}

type emit func(sample)

// span is a range of powers of two that a histogram shows; larger values are in +Inf.
type span struct{ first, last int }

var (
	microseconds = span{1, 27}
	sizes        = span{6, 36}
)

var (
	classNames     = [dispatch.ClassCount]string{dispatch.High: "high", dispatch.Medium: "medium", dispatch.Low: "low"}
	stageNames     = [dispatch.MissedStages]string{dispatch.MissedQueued: "queued", dispatch.MissedSent: "sent"}
	operationNames = [2]string{transport.Read: "read", transport.Write: "write"}

	byClass     = []string{"transport", "class"}
	byOperation = []string{"transport", "operation", "class"}
	byTransport = []string{"transport"}
	byStage     = []string{"transport", "class", "stage"}
	byRail      = []string{"transport", "peer", "local", "remote"}
)

// families lists all metrics; those by rail have a series for each rail that there is. The series of a family are there
// from the start, with zeros: a metric that appears only with its first event cannot be alerted on.
var families = []family{
	perClass("tent_read_bytes_total", "Bytes of READ requests that were delivered.",
		func(c *dispatch.Counters) uint64 { return c.Bytes[transport.Read] }),
	perClass("tent_write_bytes_total", "Bytes of WRITE requests that were delivered.",
		func(c *dispatch.Counters) uint64 { return c.Bytes[transport.Write] }),
	perClass("tent_read_requests_total", "READ requests, whatever their end.",
		func(c *dispatch.Counters) uint64 { return c.Requests[transport.Read] }),
	perClass("tent_write_requests_total", "WRITE requests, whatever their end.",
		func(c *dispatch.Counters) uint64 { return c.Requests[transport.Write] }),
	perClass("tent_read_failures_total", "READ requests that ended FAILED.",
		func(c *dispatch.Counters) uint64 { return c.Failures[transport.Read] }),
	perClass("tent_write_failures_total", "WRITE requests that ended FAILED.",
		func(c *dispatch.Counters) uint64 { return c.Failures[transport.Write] }),
	perClass("tent_canceled_total", "Requests that ended CANCELED.",
		func(c *dispatch.Counters) uint64 { return c.Canceled }),
	perClass("tent_timeout_total", "Requests that ended TIMEOUT.",
		func(c *dispatch.Counters) uint64 { return c.TimedOut }),
	{name: "tent_deadline_misses_total",
		help: "Requests that a deadline has ended: queued, nothing of them was ever sent, or sent.", kind: counter,
		labels: byStage, samples: misses},
	perClass("tent_deadline_infeasible_total",
		"Requests that were ended before their deadline, because they could not have met it.",
		func(c *dispatch.Counters) uint64 { return c.Infeasible }),
	perClass("tent_dirty_total", "Requests that ended although the peer could not confirm that nothing lands any more.",
		func(c *dispatch.Counters) uint64 { return c.Dirty }),
	perClass("tent_retries_total", "Slices sent again on the same route.",
		func(c *dispatch.Counters) uint64 { return c.Retries }),
	perClass("tent_reroutes_total", "Slices sent again on another rail.",
		func(c *dispatch.Counters) uint64 { return c.Reroutes }),
	perClass("tent_withdrawn_total", "Slices asked back by the core.",
		func(c *dispatch.Counters) uint64 { return c.Withdrawn }),
	perClass("tent_promotions_total",
		"Slices of a class that were sent before more urgent work, because it had not been served for "+
			"as long as priority_promotion_timeout_us.",
		func(c *dispatch.Counters) uint64 { return c.Promotions }),
	perClass("tent_slot_waits_total", "Times that a class had to wait for a slot of time of the host's processes.",
		func(c *dispatch.Counters) uint64 { return c.SlotWaits }),
	{name: "tent_transport_failover_total", help: "Switches of a task from one transport to the next.", kind: counter,
		labels: []string{"from", "to"}, samples: failovers},
	perOperation("tent_transport_attempts_total",
		"Slices given to a transport: a request has several, and each try of one counts.",
		func(c *dispatch.Counters, op int) uint64 { return c.Attempts[op] }),
	perOperation("tent_transport_attempt_failures_total", "Slices that failed there for a reason of their own.",
		func(c *dispatch.Counters, op int) uint64 { return c.AttemptFailures[op] }),
	perTransport("tent_rail_errors_total", "Errors that counted against a rail.", counter,
		func(t *Transport) float64 { return float64(t.RailErrors) }),
	perTransport("tent_rails_condemned_total", "Rails given up for a while.", counter,
		func(t *Transport) float64 { return float64(t.Condemned) }),
	perTransport("tent_slow_paths_total", "Times that a full rail fell below half of its nominal or usual rate.",
		counter, func(t *Transport) float64 { return float64(t.SlowPaths) }),
	perTransport("tent_flushes_total",
		"Flushes behind WRITEs that are acknowledged before they are visible; 0 where none are needed.", counter,
		func(t *Transport) float64 { return float64(t.Flushes) }),
	perTransport("tent_stray_completions_total",
		"Completions of slices that were not outstanding, all ignored: a defect of the transport.", counter,
		func(t *Transport) float64 { return float64(t.Strays) }),
	perTransport("tent_stale_calls_total", "Calls that named a link that had ended, all refused.", counter,
		func(t *Transport) float64 { return float64(t.StaleCalls) }),
	perTransport("tent_faults_injected_total", "Times that an injected fault has struck; 0 where none is allowed.",
		counter, func(t *Transport) float64 { return float64(t.Struck) }),
	perTransport("tent_faults_ambient_total",
		"Times that an ambient fault has struck: one that belongs to the stage of a test, such as its rails' rate.",
		counter, func(t *Transport) float64 { return float64(t.Ambient) }),

	distribution("tent_read_latency_us", "Microseconds from submit to end of READ requests that completed.",
		microseconds, func(c *dispatch.Counters) *dispatch.Histogram { return &c.ByOp[transport.Read].Latency }),
	distribution("tent_write_latency_us", "Microseconds from submit to end of WRITE requests that completed.",
		microseconds, func(c *dispatch.Counters) *dispatch.Histogram { return &c.ByOp[transport.Write].Latency }),
	{name: "tent_transport_attempt_latency_us", help: "Microseconds of a slice, from acceptance to completion.",
		kind: histogram, labels: byOperation, buckets: microseconds, samples: attempts},
	distribution("tent_read_size_bytes", "Bytes of a READ request.", sizes,
		func(c *dispatch.Counters) *dispatch.Histogram { return &c.ByOp[transport.Read].Sizes }),
	distribution("tent_write_size_bytes", "Bytes of a WRITE request.", sizes,
		func(c *dispatch.Counters) *dispatch.Histogram { return &c.ByOp[transport.Write].Sizes }),
	distribution("tent_stage_queue_wait_us", "Microseconds from submit to a request's first slice.", microseconds,
		func(c *dispatch.Counters) *dispatch.Histogram { return &c.QueueWait }),
	distribution("tent_slot_wait_us", "Microseconds of each wait for a slot of time of the host's processes.",
		microseconds, func(c *dispatch.Counters) *dispatch.Histogram { return &c.SlotWait }),

	{name: "tent_rails", help: "Rails by state.", kind: gauge, labels: []string{"transport", "state"}, samples: rails},
	perRail("tent_rail_health", "Health of a rail, 1000 at best.", gauge,
		func(r *Rail) float64 { return float64(r.Health) }),
	perRail("tent_rail_slow", "1 while a rail carries less than half of its nominal or usual rate although it is full.",
		gauge, func(r *Rail) float64 { return flag(r.Slow) }),
	perRail("tent_rail_rate_bytes", "Bytes a second that a rail is believed to carry.", gauge,
		func(r *Rail) float64 { return r.Rate }),
	perRail("tent_rail_in_flight_bytes", "Bytes handed to a rail and not completed.", gauge,
		func(r *Rail) float64 { return float64(r.InFlight) }),
	perRail("tent_rail_bytes_total", "Bytes that a rail has delivered.", counter,
		func(r *Rail) float64 { return float64(r.Bytes) }),
	perRail("tent_rail_failures_total", "Errors that counted against a rail.", counter,
		func(r *Rail) float64 { return float64(r.Errors) }),
	{name: "tent_rail_state", help: "Always 1; the label tells the state of a rail.", kind: gauge,
		labels: slices.Concat(byRail, []string{"state"}), samples: func(s *Snapshot, out emit) {
			for i := range s.Rails {
				out(sample{labels: append(s.Rails[i].labels(), s.Rails[i].State), value: 1})
			}
		}},
	{name: "tent_queue_depth", help: "Requests that wait for a rail.", kind: gauge, labels: byClass,
		samples: depths(func(t *Transport, class int) float64 { return float64(t.Queued[class]) })},
	{name: "tent_queue_bytes", help: "Bytes that wait for a rail.", kind: gauge, labels: byClass,
		samples: depths(func(t *Transport, class int) float64 { return float64(t.QueuedBytes[class]) })},
	perTransport("tent_in_flight_bytes", "Bytes handed to a transport and not completed.", gauge,
		func(t *Transport) float64 { return float64(t.InFlight) }),
	perTransport("tent_shared_processes",
		"Engines that share slots and load of NICs, this one among them; 0 where nothing is shared.", gauge,
		func(t *Transport) float64 { return float64(t.Sharing.Processes) }),
	{name: "tent_shared_others_bytes", help: "Bytes that other processes have in flight on a local NIC.", kind: gauge,
		labels: []string{"transport", "device"}, samples: sharedDevices},
	perTransport("tent_faults", "Injected faults in force.", gauge,
		func(t *Transport) float64 { return float64(t.Faults) }),
	single("tent_batches", "Batches alive.", gauge, func(s *Snapshot) float64 { return float64(s.Batches) }),
	single("tent_pending_requests", "Requests that have not ended.", gauge,
		func(s *Snapshot) float64 { return float64(s.PendingRequests) }),
	single("tent_regions", "Registered regions.", gauge, func(s *Snapshot) float64 { return float64(s.Regions) }),
	single("tent_registered_bytes", "Bytes of registered regions.", gauge,
		func(s *Snapshot) float64 { return float64(s.RegisteredBytes) }),
	single("tent_insecure", "1 while the engine admits anybody who reaches it, else 0.", gauge,
		func(s *Snapshot) float64 { return flag(s.Insecure) }),
	single("tent_staging_slots", "Slots of the pools in host memory through which memory of devices goes.", gauge,
		func(s *Snapshot) float64 { return float64(s.StageSlots) }),
	single("tent_staging_slots_free", "Slots of those pools that no request holds.", gauge,
		func(s *Snapshot) float64 { return float64(s.StageFree) }),
	single("tent_staging_waits_total", "Times that a request found no free slot in a pool, and waited.", counter,
		func(s *Snapshot) float64 { return float64(s.StageWaits) }),
	single("tent_segments", "Segments opened and not closed.", gauge,
		func(s *Snapshot) float64 { return float64(s.Segments) }),
	single("tent_peers", "Peers attached.", gauge, func(s *Snapshot) float64 { return float64(s.Peers) }),
	single("tent_notifications_sent_total", "Notifications that a peer has taken.", counter,
		func(s *Snapshot) float64 { return float64(s.Notifications.Sent) }),
	single("tent_notifications_received_total", "Notifications taken from peers.", counter,
		func(s *Snapshot) float64 { return float64(s.Notifications.Received) }),
	single("tent_notifications_refused_total", "Notifications held back because the queue was full.", counter,
		func(s *Snapshot) float64 { return float64(s.Notifications.Refused) }),
	single("tent_trace_reports_dropped_total", "Reports of traced transfers that were dropped, at either end.", counter,
		func(s *Snapshot) float64 { return float64(s.ReportsDropped) }),
	single("tent_notifications_waiting", "Notifications in the queue.", gauge,
		func(s *Snapshot) float64 { return float64(s.Notifications.Waiting) }),
	{name: "tent_refused_total",
		help: "Requests of peers that were refused, by the part that refused them and the reason.", kind: counter,
		labels: []string{"plane", "reason"}, samples: refusals},
	{name: "tent_build_info", help: "Always 1; the labels tell the build.", kind: gauge,
		labels: []string{"version", "protocol", "go_version"}, samples: func(s *Snapshot, out emit) {
			out(sample{labels: []string{s.Version, s.Protocol, s.GoVersion}, value: 1})
		}},
}

// eachClass visits the counters of every transport and class; read leaves the labels to it.
func eachClass(read func(*dispatch.Counters) sample) func(*Snapshot, emit) {
	return func(s *Snapshot, out emit) {
		for i := range s.Transports {
			t := &s.Transports[i]
			for class := range t.Classes {
				v := read(&t.Classes[class])
				v.labels = []string{t.Name, classNames[class]}
				out(v)
			}
		}
	}
}

// eachOperation does the same for READ and WRITE apart.
func eachOperation(read func(*dispatch.Counters, int) sample) func(*Snapshot, emit) {
	return func(s *Snapshot, out emit) {
		for op, operation := range operationNames {
			eachClass(func(c *dispatch.Counters) sample { return read(c, op) })(s, func(v sample) {
				v.labels = []string{v.labels[0], operation, v.labels[1]}
				out(v)
			})
		}
	}
}

func perClass(name, help string, read func(*dispatch.Counters) uint64) family {
	return family{name: name, help: help, kind: counter, labels: byClass,
		samples: eachClass(func(c *dispatch.Counters) sample { return sample{value: float64(read(c))} })}
}

func perOperation(name, help string, read func(*dispatch.Counters, int) uint64) family {
	return family{name: name, help: help, kind: counter, labels: byOperation,
		samples: eachOperation(func(c *dispatch.Counters, op int) sample {
			return sample{value: float64(read(c, op))}
		})}
}

func perTransport(name, help string, k kind, read func(*Transport) float64) family {
	return family{name: name, help: help, kind: k, labels: byTransport, samples: func(s *Snapshot, out emit) {
		for i := range s.Transports {
			out(sample{labels: []string{s.Transports[i].Name}, value: read(&s.Transports[i])})
		}
	}}
}

func perRail(name, help string, k kind, read func(*Rail) float64) family {
	return family{name: name, help: help, kind: k, labels: byRail, samples: func(s *Snapshot, out emit) {
		for i := range s.Rails {
			out(sample{labels: s.Rails[i].labels(), value: read(&s.Rails[i])})
		}
	}}
}

func (r *Rail) labels() []string { return []string{r.Transport, r.Peer, r.Local, r.Remote} }

func single(name, help string, k kind, read func(*Snapshot) float64) family {
	return family{name: name, help: help, kind: k, samples: func(s *Snapshot, out emit) { out(sample{value: read(s)}) }}
}

func distribution(name, help string, buckets span, read func(*dispatch.Counters) *dispatch.Histogram) family {
	return family{name: name, help: help, kind: histogram, labels: byClass, buckets: buckets,
		samples: eachClass(func(c *dispatch.Counters) sample { return sample{histogram: read(c)} })}
}

// flag is 1 for true.
func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func attempts(s *Snapshot, out emit) {
	eachOperation(func(c *dispatch.Counters, op int) sample { return sample{histogram: &c.ByOp[op].Attempt} })(s, out)
}

func failovers(s *Snapshot, out emit) {
	for _, f := range s.Failovers {
		out(sample{labels: []string{f.From, f.To}, value: float64(f.Count)})
	}
}

func sharedDevices(s *Snapshot, out emit) {
	for i := range s.Transports {
		for _, d := range s.Transports[i].Sharing.Devices {
			out(sample{labels: []string{s.Transports[i].Name, d.Device}, value: float64(d.Others)})
		}
	}
}

func rails(s *Snapshot, out emit) {
	for _, t := range s.Transports {
		out(sample{labels: []string{t.Name, "up"}, value: float64(t.RailsUp)})
		out(sample{labels: []string{t.Name, "down"}, value: float64(t.RailsDown)})
	}
}

func refusals(s *Snapshot, out emit) {
	for i := range s.Refusals {
		for reason, n := range s.Refusals[i].Counts {
			out(sample{labels: []string{s.Refusals[i].Plane, transport.Refusal(reason).String()}, value: float64(n)})
		}
	}
}

func depths(read func(*Transport, int) float64) func(*Snapshot, emit) {
	return func(s *Snapshot, out emit) {
		for i := range s.Transports {
			for class, name := range classNames {
				out(sample{labels: []string{s.Transports[i].Name, name}, value: read(&s.Transports[i], class)})
			}
		}
	}
}

func misses(s *Snapshot, out emit) {
	for stage, name := range stageNames {
		eachClass(func(c *dispatch.Counters) sample { return sample{value: float64(c.Misses[stage])} })(s,
			func(v sample) {
				v.labels = append(v.labels, name)
				out(v)
			})
	}
}
