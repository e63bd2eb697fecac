package transport

// Refusal is the reason why something was refused to a peer, as metrics and events show it. The set is small and fixed:
// the peer reads one text for all of them, our log has the cause.
type Refusal uint8

// Reasons.
const (
	RefusedIdentity  Refusal = iota // it says to be somebody else, or cannot prove its ID
	RefusedProof                    // it names an attachment that is none of its own, or cannot prove its secret
	RefusedAccess                   // memory that it was not given, or an operation on it
	RefusedHost                     // it is not the process of this host that it says to be
	RefusedMalformed                // a message or a greeting that nobody of good will sends
	RefusedLimit                    // connections, lanes, attachments or bytes beyond a bound
	RefusedRate                     // calls beyond the number a second
	RefusedSilence                  // it was connected and said nothing, or not enough, in time
	RefusedVersion                  // it speaks no version that is spoken here
	RefusedForged                   // bytes on a protected lane that its peer did not send
	RefusalCount
)

var refusalNames = [RefusalCount]string{RefusedIdentity: "identity", RefusedProof: "proof", RefusedAccess: "access",
	RefusedHost: "host", RefusedMalformed: "malformed", RefusedLimit: "limit", RefusedRate: "rate",
	RefusedSilence: "silence", RefusedVersion: "version", RefusedForged: "forged"}

// String returns the reason as the label of metrics.
func (r Refusal) String() string { return refusalNames[r] }
