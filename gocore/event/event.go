// Package event is the one struct that the core emits for its listeners: metrics, logs, traces, the user.
package event

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// Kind is the kind of an event.
type Kind uint8

// Kinds. Task ends are counted by the core, not emitted: there may be a million of them a second.
//
// The life of a rail: it is up; it is suspected while it says nothing, and recovers with its next sign of life; it is
// paused after too many errors, and recovers with its cooldown, a success or good probes; it is condemned when all of
// it is fenced, and comes up again in a new generation. Down is the transport's word.
//
// A peer is silent while it owes answers and nothing proves its end, and back with its next answer; gone is for good.
// The name of an engine is lost while the metadata service does not hold it. Sharing goes off and on with the pages
// that processes of a host share.
const (
	RailUp Kind = iota + 1
	RailDown
	RailSuspected
	RailCondemned
	RailRecovered
	LinkUp
	LinkDown
	PeerGone
	Failover
	FailoverExhausted
	FailoverNoRoute
	Dirty
	Withdrawn
	Stalled
	RegionClosed
	SegmentOpened
	SegmentClosed
	RailPaused
	RailProbed
	DeadlineMissed
	SharingOff
	SharingOn
	PeerAdmitted
	PeerRefused
	AccessRefused
	MetricsOff
	Insecure
	SlowPath
	SlowPathOver
	Traced
	PeerSilent
	PeerBack
	StrayCompletion
	NameLost
	NameBack
	PeerDisconnected
	SecurityReloaded
	LeaseMade
	LeaseEnded
	TransportStuck
	RegionHeld
)

// kinds holds the name and the meaning of each kind; docs/reference/events.md is generated from it.
var kinds = [...]struct{ name, help string }{
	RailUp:        {"rail_up", "A rail is connected and carries bytes."},
	RailDown:      {"rail_down", "The transport lost a rail; `error` has the cause, `note` the news that are old."},
	RailSuspected: {"rail_suspected", "Bytes were outstanding on a rail, and nothing was heard of it for `took`."},
	RailCondemned: {"rail_condemned", "A rail was fenced: the completions of all of its slices were asked for."},
	RailRecovered: {"rail_recovered", "A rail carries bytes again; `note` says what brought it back."},
	LinkUp:        {"link_up", "A transport has a connection to a peer."},
	LinkDown:      {"link_down", "A transport lost its connection to a peer; `error` has the cause."},
	PeerGone:      {"peer_gone", "A peer has ended, and nothing of it can land any more."},
	PeerSilent: {"peer_silent",
		"A peer that owes answers has said nothing for `took`, and nothing proves that it has gone: requests wait."},
	PeerBack:          {"peer_back", "A silent peer has answered again, after `took`: requests go on."},
	Failover:          {"failover", "A request moved from the transport `from` to `to`: switch `n` of at most `m`."},
	FailoverExhausted: {"failover_exhausted", "A request used up its `m` switches and failed on the transport `from`."},
	FailoverNoRoute: {"failover_no_route",
		"A request failed on the transport `from`, and no other one can carry it."},
	Dirty:     {"dirty", "A request ended although the peer could not confirm that nothing lands any more."},
	Withdrawn: {"withdrawn", "A peer confirmed a withdrawal that was open: its link carries bytes again."},
	Stalled:   {"stalled", "A request reached the stall limit: it was served this long without progress."},
	RegionClosed: {"region_closed",
		"The region named in `rail` was closed: no peer can touch its bytes any more. With `error` one still may."},
	SegmentOpened: {"segment_opened", "A segment was opened."},
	SegmentClosed: {"segment_closed", "A segment was closed."},
	RailPaused: {"rail_paused",
		"A rail is out for `took`: `note` has the reason, `n` errors within the window or what else."},
	RailProbed: {"rail_probed",
		"A rail that is out was probed. Without `error` it answered after `took`: `n` good probes of `m`."},
	DeadlineMissed: {"deadline_missed",
		"`n` requests to a peer missed their deadline since the last such event; `m` of them were never sent. " +
			"`error` is that of the latest one."},
	SharingOff: {"sharing_off",
		"Slots and load of NICs are not shared with other processes any more, for the reason in `error`."},
	SharingOn:    {"sharing_on", "Slots and load of NICs are shared with other processes again."},
	PeerAdmitted: {"peer_admitted", "A peer that had no connection called, and was let in."},
	PeerRefused: {"peer_refused",
		"A peer was not let in: `n` times since the last such event, for the reason in `note`; `error` has the cause."},
	AccessRefused: {"access_refused",
		"Something was refused to a peer by `transport`: `n` times since the last such event, for the reason in " +
			"`note`; `error` has the cause of the latest."},
	MetricsOff: {"metrics_off",
		"Metrics are not served at the address in `note`, for the reason in `error`; the engine goes on without."},
	Insecure: {"insecure", "The engine was opened with `insecure`: it admits anybody who reaches it."},
	SlowPath: {"slow_path",
		"A full rail carried `n` percent of its nominal or usual rate for `took`; `note` has the cause and the knob."},
	SlowPathOver: {"slow_path_over", "A rail that was slow carries `n` percent of that rate again."},
	Traced: {"traced",
		"A peer reports a turn of its transfer `trace` with this engine. `note` is completed, failed, canceled, " +
			"timed out or failover; `bytes` have moved, `error` has the cause."},
	StrayCompletion: {"stray_completion",
		"`transport` completed a slice that was not outstanding, for the `n`th time: a defect of that transport. " +
			"From the `m`th on its links go down."},
	NameLost: {"name_lost",
		"The metadata service does not hold the name of this engine, for the reason in `error`: it is tried again, " +
			"and open segments work on."},
	NameBack: {"name_back", "The metadata service holds the name of this engine again."},
	PeerDisconnected: {"peer_disconnected",
		"A peer of the identities in `note` lost its access, for the reason in `error`: it touches no memory now."},
	SecurityReloaded: {"security_reloaded",
		"The files of mode mtls were replaced and read again; with `error` those of before count on."},
	LeaseMade: {"lease_made",
		"The lease named in `rail` was given to the peers in `note`: `bytes` of a region, for `took` or, if that is " +
			"0, without an end."},
	LeaseEnded: {"lease_ended",
		"The lease named in `rail` has ended, and no peer touches its bytes by it; `note` is closed, expired or " +
			"region closed."},
	TransportStuck: {"transport_stuck",
		"`transport` stands still on a rail for `took`, and `note` says how. Requests that were to end wait for the " +
			"return of a withdrawal: their memory may still be in use. Others take another way, if they have one."},
	RegionHeld: {"region_held",
		"`transport` has not let the closed region named in `rail` go for `took`: a driver may still use its `bytes`."},
}

// String returns the name of a kind, as events carry it to Python and into the log.
func (k Kind) String() string { return kinds[k].name }

// Help returns the meaning of a kind in a sentence or two.
func (k Kind) Help() string { return kinds[k].help }

// Kinds returns every kind in the order of its number.
func Kinds() []Kind {
	list := make([]Kind, 0, len(kinds)-1)
	for k := RailUp; int(k) < len(kinds); k++ {
		list = append(list, k)
	}
	return list
}

// Event is a value; fields that do not apply are zero.
type Event struct {
	Kind      Kind
	Time      clock.Time
	Peer      string
	ID, Host  string // that Peer has proved, and that its call came from; for security/audit
	Transport string
	Rail      string // "local -> remote", and both ends apart:
	Local     string
	Remote    string
	From, To  string
	Note      string // the reason that a rail is out, or back: "3 errors", "cooldown expired" and others
	N, M      int
	Took      time.Duration
	Bytes     uint64
	Health    int // of the rail, 0 to 1000
	Err       *errs.Error
	Trace     string // the caller's name for the request
}
