package transport

import "github.com/tent-engine/tent/gocore/errs"

// Epoch counts the fences of an engine, of all its regions and for all its peers together: a fencing token. A task
// carries the newest epoch of the owner that was known when the task began, and each slice that of its task. The owner
// remembers in which epoch a region was last fenced for a peer, and refuses slices of older ones (Fenced). So a fence
// needs no answer of a peer: one that was stopped, or cut off, comes with an old epoch afterwards, over any transport.
//
// Peers hear of an epoch with the description of the owner's regions, by Sink.Fenced, or by EpochReader.
type Epoch uint64

// ForGood is the epoch of a revocation that no later slice survives.
const ForGood Epoch = 0

// Fenced makes the error of a slice or a task that began before a fence of its remote region.
func Fenced(op string) *errs.Error {
	return errs.New(errs.AddressNotRegistered, op, "the region was fenced by its owner after the transfer had begun").
		WithScope(errs.ScopeSlice, errs.SideRemote).WithHint("submit the transfer again if it is still wanted")
}

// Replaced makes the error of a slice with the key of a descriptor that its owner has replaced. The core asks for the
// new one and sends the bytes again.
func Replaced(op string) *errs.Error {
	return errs.New(errs.Replaced, op, "the owner of the region has replaced its descriptor").
		WithScope(errs.ScopeSlice, errs.SideRemote)
}
