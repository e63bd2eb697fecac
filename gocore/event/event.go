// Package event is the one struct that the core emits for whoever listens: metrics, logs, traces, the user.
package event

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// Kind says what happened.
type Kind uint8

// Kinds. Task ends are counted by the core, not emitted: there may be a million of them a second.
//
// The life of a rail: it is up; it is suspected while it says nothing, and recovers with its next sign of life; it is
// paused after too many errors, and recovers with its cooldown, a success or good probes; it is condemned when all of it
// is fenced, and comes up again in a new generation. Down is the transport's word.
const (
	RailUp Kind = iota + 1
	RailDown
	RailSuspected // Bytes were outstanding, nothing was heard for Took
	RailCondemned // the fence: completions of the whole rail were asked for
	RailRecovered // carries again; Note says by what
	LinkUp
	LinkDown
	PeerGone          // the peer has ended, nothing of it can land any more
	Failover          // a task moved to its next route: From, To, N of M
	FailoverExhausted // the budget is used up: From, M
	FailoverNoRoute   // nothing is left after From
	Dirty             // a task ended although the peer could not confirm
	Withdrawn         // an open withdrawal was confirmed at last
	Stalled           // a task reached the stall limit
	RegionClosed
	SegmentOpened
	SegmentClosed
	RailPaused     // N errors within the window: out for Took
	RailProbed     // a rail that is out was asked: Err is nil and Took the round trip if it answered; N good ones of M
	DeadlineMissed // N requests to a peer since the last such event, M of which were never sent; Err is the latest one's
	SharingOff     // slots and load of NICs are not known across processes any more, for the reason in Err
	SharingOn      // they are again
)

var names = [...]string{RailUp: "rail_up", RailDown: "rail_down", RailSuspected: "rail_suspected",
	RailCondemned: "rail_condemned", RailRecovered: "rail_recovered", LinkUp: "link_up", LinkDown: "link_down",
	PeerGone: "peer_gone", Failover: "failover", FailoverExhausted: "failover_exhausted",
	FailoverNoRoute: "failover_no_route", Dirty: "dirty", Withdrawn: "withdrawn", Stalled: "stalled",
	RegionClosed: "region_closed", SegmentOpened: "segment_opened", SegmentClosed: "segment_closed",
	RailPaused: "rail_paused", RailProbed: "rail_probed",
	DeadlineMissed: "deadline_missed", SharingOff: "sharing_off", SharingOn: "sharing_on"}

func (k Kind) String() string { return names[k] }

// Event is a value; fields that do not apply are zero.
type Event struct {
	Kind      Kind
	Time      clock.Time
	Peer      string
	Transport string
	Rail      string // "local -> remote", and both ends apart:
	Local     string
	Remote    string
	From, To  string
	Note      string // what brought a rail back: "cooldown expired", "un-paused by successful transfer", and others
	N, M      int
	Took      time.Duration
	Bytes     uint64
	Health    int // of the rail, 0 to 1000
	Err       *errs.Error
}
