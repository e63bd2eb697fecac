// Package event is the one struct that the core emits for whoever listens: metrics, logs, traces, the user.
package event

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// Kind says what happened.
type Kind uint8

// Kinds. Task ends are counted by the core, not emitted: there may be a million of them a second.
const (
	RailUp Kind = iota + 1
	RailDown
	RailSuspected
	RailCondemned
	RailRecovered
	LinkUp
	LinkDown
	PeerGone
	Failover          // a task moved to its next route: From, To, N of M
	FailoverExhausted // the budget is used up: From, M
	FailoverNoRoute   // nothing is left after From
	Dirty             // a task ended although the peer could not confirm
	Withdrawn         // an open withdrawal was confirmed at last
	Stalled           // a task reached the stall limit
	RegionClosed
	SegmentOpened
	SegmentClosed
)

var names = [...]string{RailUp: "rail_up", RailDown: "rail_down", RailSuspected: "rail_suspected",
	RailCondemned: "rail_condemned", RailRecovered: "rail_recovered", LinkUp: "link_up", LinkDown: "link_down",
	PeerGone: "peer_gone", Failover: "failover", FailoverExhausted: "failover_exhausted",
	FailoverNoRoute: "failover_no_route", Dirty: "dirty", Withdrawn: "withdrawn", Stalled: "stalled",
	RegionClosed: "region_closed", SegmentOpened: "segment_opened", SegmentClosed: "segment_closed"}

func (k Kind) String() string { return names[k] }

// Event is a value; fields that do not apply are zero.
type Event struct {
	Kind      Kind
	Time      clock.Time
	Peer      string
	Transport string
	Rail      string
	From, To  string
	N, M      int
	Err       *errs.Error
}
