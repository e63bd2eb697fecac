// Code generated from gocore/request/schema by go generate; DO NOT EDIT.

package request

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Terms say how the bytes of a request are to travel, beside where they lie. The zero value is a READ of the
// highest class, without a deadline, that promises nothing special.
type Terms struct {
	Policy     uint64       // the policy that counts, by its name; without one the first that matches
	Deadline   clock.Time   // the request ends as TIMEOUT when this instant passes; 0 is none
	Require    uint64       // the only transports that may carry it: bit n modulo 64 for the one of number n; 0 is any
	Stream     uint64       // the stream of a device whose present work must be done before a byte moves; 0 is none
	Op         transport.Op // the direction: READ fetches from the peer, WRITE sends to it
	Class      uint8        // the class: a smaller number is served first wherever requests of several classes wait
	Hint       uint8        // the transport that is tried first; 0 leaves the choice to the policy
	Intent     Intent       // why the bytes move; a policy may choose routes by it
	Integrity  Integrity    // a checksum of each slice, verified where it arrives; a slice that does not match is sent again
	Durability Durability   // for files: the batch ends when all that the request has written is on stable storage
}

// Intent is the intent_type of a request.
type Intent uint8

// Values of Intent.
const (
	IntentUnspec             Intent = 0
	IntentForegroundGet      Intent = 1
	IntentBackgroundPrefetch Intent = 2
	IntentMigration          Intent = 3
	IntentCheckpoint         Intent = 4
	IntentWeightLoading      Intent = 5
	IntentStagingInternal    Intent = 6
)

var namesIntent = [...]string{"unspec", "foreground_get", "background_prefetch", "migration", "checkpoint", "weight_loading", "staging_internal"}

func (v Intent) String() string {
	if int(v) < len(namesIntent) {
		return namesIntent[v]
	}
	return "?"
}

// Integrity is the integrity of a request.
type Integrity uint8

// Values of Integrity.
const (
	IntegrityNone   Integrity = 0
	IntegrityCRC32C Integrity = 1
)

var namesIntegrity = [...]string{"none", "crc32c"}

func (v Integrity) String() string {
	if int(v) < len(namesIntegrity) {
		return namesIntegrity[v]
	}
	return "?"
}

// Durability is the durability of a request.
type Durability uint8

// Values of Durability.
const (
	DurabilityNone Durability = 0
	DurabilityData Durability = 1
)

var namesDurability = [...]string{"none", "data"}

func (v Durability) String() string {
	if int(v) < len(namesDurability) {
		return namesDurability[v]
	}
	return "?"
}

// Check returns an InvalidArgument error that names the first term out of its range, or nil. It is the only
// check of ranges between a face and the wire.
func (t *Terms) Check() *errs.Error {
	switch {
	case t.Op > 1:
		return outOfRange("opcode", uint64(t.Op), "READ (0) or WRITE (1)")
	case t.Class > 2:
		return outOfRange("priority", uint64(t.Class), "PRIO_HIGH (0), PRIO_MEDIUM (1) or PRIO_LOW (2)")
	case t.Hint == unfit:
		return outOfRange("transport_hint", uint64(t.Hint), "the number of a transport")
	case t.Policy == unfit:
		return outOfRange("policy_name", uint64(t.Policy), "the name of a policy")
	case t.Deadline < 0:
		return outOfRange("deadline_ns", uint64(t.Deadline), "below 2^63")
	case t.Intent > 6:
		return outOfRange("intent_type", uint64(t.Intent), "the number of an IntentType")
	case t.Integrity > 1:
		return outOfRange("integrity", uint64(t.Integrity), "\"crc32c\" (1) or None (0)")
	case t.Durability > 1:
		return outOfRange("durability", uint64(t.Durability), "\"data\" (1) or None (0)")
	}
	return nil
}

// Same reports whether two requests have the same terms. It is asked for each request of a call, where a
// comparison of whole structs is a call into the runtime.
func (t *Terms) Same(other *Terms) bool {
	return t.Op == other.Op &&
		t.Class == other.Class &&
		t.Hint == other.Hint &&
		t.Policy == other.Policy &&
		t.Deadline == other.Deadline &&
		t.Intent == other.Intent &&
		t.Integrity == other.Integrity &&
		t.Durability == other.Durability &&
		t.Require == other.Require &&
		t.Stream == other.Stream
}

// Packed are the terms of a request as they cross the border: a word each, 0 for the default.
type Packed struct {
	Opcode        uint64
	Priority      uint64
	TransportHint uint64
	PolicyName    uint64
	DeadlineNs    uint64
	IntentType    uint64
	Integrity     uint64
	Durability    uint64
	Require       uint64
	Stream        uint64
}

// Terms returns the terms in the core's form. A word that does not fit becomes one that Check refuses.
func (p Packed) Terms() Terms {
	return Terms{
		Op:         transport.Op(narrow(p.Opcode)),
		Class:      narrow(p.Priority),
		Hint:       narrow(p.TransportHint),
		Policy:     p.PolicyName,
		Deadline:   clock.Time(p.DeadlineNs),
		Intent:     Intent(narrow(p.IntentType)),
		Integrity:  Integrity(narrow(p.Integrity)),
		Durability: Durability(narrow(p.Durability)),
		Require:    p.Require,
		Stream:     p.Stream,
	}
}

// Record is one packed request.
type Record struct {
	Source       uint64 // local address, registered or allocated, in either direction
	TargetID     uint64 // handle of the segment; 0 is the engine's own memory
	TargetOffset uint64 // an address of the peer; counts from 0 in a segment opened on one region or a file
	Length       uint64 // bytes
	TargetRegion uint64 // number of the region in which the offset counts; 0: as the segment was opened
	Packed
}

// PackedNote is a notification and a trace in the caller's memory; notify is 0 for a trace alone.
type PackedNote struct {
	Notify         uint64
	NameAddress    uint64
	NameBytes      uint64
	MessageAddress uint64
	MessageBytes   uint64
	TraceAddress   uint64
	TraceBytes     uint64
}
