package rdma

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// The end of a work request that failed, by its status: which end is blamed, and how much goes with it. The queue pair
// has failed in each case. Where the slice alone is to blame, its lane is connected anew beneath a rail that lives, and
// its neighbours are collateral; else the rail goes down. The statuses are those of the InfiniBand architecture, volume
// 1, 11.6.2; the blame follows the health rules of the LNet resiliency seed.
type blame struct {
	code  errs.Code
	scope errs.Scope
	side  errs.Side
}

var blames = [verbs.StatusCount]blame{
	1:  {errs.RdmaError, errs.ScopeSlice, errs.SideLocal},             // a range longer than the port's messages
	2:  {errs.RdmaError, errs.ScopeRail, errs.SideLocal},              // queue pair operation: our own defect
	3:  {errs.RdmaError, errs.ScopeRail, errs.SideLocal},              // EE context: never on RC
	4:  {errs.AddressNotRegistered, errs.ScopeSlice, errs.SideLocal},  // the local key does not cover the range
	5:  {errs.Lost, errs.ScopeRail, errs.SideLocal},                   // flushed, and nothing before: our port is gone
	6:  {errs.RdmaError, errs.ScopeSlice, errs.SideLocal},             // memory window
	7:  {errs.Lost, errs.ScopeRail, errs.SideRemote},                  // a response that makes no sense
	8:  {errs.AddressNotRegistered, errs.ScopeSlice, errs.SideLocal},  // local access
	9:  {errs.AddressNotRegistered, errs.ScopeSlice, errs.SideRemote}, // remote invalid request
	10: {errs.AddressNotRegistered, errs.ScopeSlice, errs.SideRemote}, // the remote key is dead, or not for this
	11: {errs.Lost, errs.ScopeRail, errs.SideRemote},                  // the remote end could not carry it out
	12: {errs.Lost, errs.ScopeRail, errs.SidePath},                    // nobody acknowledged
	13: {errs.Lost, errs.ScopeRail, errs.SideRemote},                  // receiver not ready
	14: {errs.RdmaError, errs.ScopeRail, errs.SideLocal},              // RDD: never on RC
	15: {errs.RdmaError, errs.ScopeRail, errs.SideRemote},             // RDD: never on RC
	16: {errs.Lost, errs.ScopeRail, errs.SideRemote},                  // the remote end aborted
	17: {errs.RdmaError, errs.ScopeRail, errs.SideLocal},              // EE context: never on RC
	18: {errs.RdmaError, errs.ScopeRail, errs.SideLocal},              // EE context: never on RC
	19: {errs.Lost, errs.ScopeRail, errs.SideLocal},                   // the device failed
	20: {errs.Lost, errs.ScopeRail, errs.SidePath},                    // response timeout
	21: {errs.Lost, errs.ScopeRail, errs.SideLocal},                   // anything else, by the vendor
}

// blameOf returns the blame of a status that is no success.
func blameOf(status verbs.Status) blame {
	if status < verbs.StatusCount {
		return blames[status]
	}
	return blame{errs.Lost, errs.ScopeRail, errs.SideUnknown}
}

// failed makes the error of a work request on a rail.
func (r *rail) failed(wc *verbs.WC) *errs.Error {
	b := blameOf(wc.Status)
	return errs.New(b.code, Name, "%v (vendor error %#x)", wc.Status, wc.Vendor).WithScope(b.scope, b.side).
		WithPeer(r.link.peer.Address, Name, r.name())
}

// reach is how much of a device an event is about.
type reach uint8

const (
	reachNone    reach = iota
	reachPair          // one queue pair
	reachAddress       // those with an address here that the port has not any more
	reachPort          // all of them, which come back when the port does; other ports of the device have none
	reachRisen         // those that are down are connected at once: the port is back
	reachDevice        // all of them for good
)

// act is the answer to an event of a device.
type act struct {
	reach reach
	side  errs.Side
}

// eventActs are the answers to the events of devices. An event that is not here does nothing: a queue pair of a peer's
// link that fails is that peer's to notice.
var eventActs = map[uint32]act{
	verbs.QueueFailed: {reachDevice, errs.SideLocal},
	verbs.PairFatal:   {reachPair, errs.SideLocal},
	verbs.PairRequest: {reachPair, errs.SideRemote},
	verbs.PairAccess:  {reachPair, errs.SideRemote},
	verbs.DeviceFatal: {reachDevice, errs.SideLocal},
	verbs.PortActive:  {reachRisen, errs.SideLocal},
	verbs.PortFailed:  {reachPort, errs.SideLocal},
	verbs.LIDChanged:  {reachPort, errs.SideLocal},
	verbs.GIDChanged:  {reachAddress, errs.SideLocal},
}

func (a act) cause(device, text string) *errs.Error {
	return errs.New(errs.Lost, Name, "%s: %s", device, text).WithScope(errs.ScopeRail, a.side)
}
