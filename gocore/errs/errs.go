// Package errs is the vocabulary of failures. An Error is made once, where the cause is first known, and wrapped
// with %w above. Code, scope and side are what failover and the Python layer act on; the text is for people.
package errs

import (
	"errors"
	"fmt"
	"strings"
)

// Code says what went wrong. Values up to 200 are upstream's status codes; those from 300 on are tent's own.
type Code uint16

// Codes. The first group is the user's fault or a fact that no retry changes; see Error.Permanent.
const (
	OK                   Code = 0
	InvalidArgument      Code = 1
	TooManyRequests      Code = 2
	AddressNotRegistered Code = 3
	DeviceNotFound       Code = 4
	InvalidEntry         Code = 5
	RdmaError            Code = 100
	CudaError            Code = 101
	MetadataError        Code = 131
	RpcServiceError      Code = 132
	MalformedJSON        Code = 133
	Internal             Code = 199
	NotImplemented       Code = 200
	PermissionDenied     Code = 300
	PeerUnreachable      Code = 301 // nobody answers, or the connection broke and could not be made again
	PeerRestarted        Code = 302 // somebody answers, but it is another incarnation
	EngineClosed         Code = 303
	Canceled             Code = 304
	Timeout              Code = 305 // a deadline or the stall limit
	Lost                 Code = 306 // a lane or a rail broke under the slice; another one may carry it
	Withdrawn            Code = 307 // the core asked for this completion; the bytes were not delivered
	StaleGeneration      Code = 308 // the rail, lane or region has moved on
	NoRoute              Code = 309 // nothing is left that could carry the bytes
	OutOfMemory          Code = 310
	Protocol             Code = 311 // the other side broke the wire protocol
	Stale                Code = 312 // an id or handle of something that has ended
	Corrupted            Code = 313 // the bytes that arrived are not those that were sent
	NotFound             Code = 314 // no file has that name, or it is gone
	NoSpace              Code = 315 // the file system is full, a quota or the largest file size is reached
	StorageError         Code = 316 // the device or file system under a file has failed
)

var codeNames = map[Code]string{
	OK: "OK", InvalidArgument: "INVALID_ARGUMENT", TooManyRequests: "TOO_MANY_REQUESTS",
	AddressNotRegistered: "ADDRESS_NOT_REGISTERED", DeviceNotFound: "DEVICE_NOT_FOUND", InvalidEntry: "INVALID_ENTRY",
	RdmaError: "RDMA_ERROR", CudaError: "CUDA_ERROR", MetadataError: "METADATA_ERROR", RpcServiceError: "RPC_SERVICE_ERROR",
	MalformedJSON: "MALFORMED_JSON", Internal: "INTERNAL_ERROR", NotImplemented: "NOT_IMPLEMENTED",
	PermissionDenied: "PERMISSION_DENIED", PeerUnreachable: "PEER_UNREACHABLE", PeerRestarted: "PEER_RESTARTED",
	EngineClosed: "ENGINE_CLOSED", Canceled: "CANCELED", Timeout: "TIMEOUT", Lost: "LOST", Withdrawn: "WITHDRAWN",
	StaleGeneration: "STALE_GENERATION", NoRoute: "NO_ROUTE", OutOfMemory: "OUT_OF_MEMORY", Protocol: "PROTOCOL",
	Stale: "STALE_ID", Corrupted: "CORRUPTED", NotFound: "NOT_FOUND", NoSpace: "NO_SPACE", StorageError: "STORAGE_ERROR",
}

// String returns the code's name as it crosses into Python, for example "PEER_UNREACHABLE".
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("CODE_%d", uint16(c))
}

// Scope says how much the failure takes with it; failover reads nothing else.
type Scope uint8

// Scopes, from the narrowest to the widest.
const (
	ScopeSlice     Scope = iota // this slice only: send it again, the rail is fine
	ScopeRail                   // this rail: another rail of the link may carry it
	ScopeLink                   // all rails to this peer: the next route
	ScopeTransport              // the transport itself, towards every peer
)

func (s Scope) String() string { return [...]string{"slice", "rail", "link", "transport"}[s&3] }

// Side says whose end failed, where that is known.
type Side uint8

// Sides.
const (
	SideUnknown Side = iota
	SideLocal
	SideRemote
	SidePath
)

func (s Side) String() string { return [...]string{"unknown", "local", "remote", "path"}[s&3] }

// Error is the only error type that crosses a package boundary of tent with a meaning. It is immutable once made.
type Error struct {
	Code       Code
	Scope      Scope
	Side       Side
	Collateral bool   // failed because a neighbour did: retried at once, counts against nothing
	Op         string // what was attempted: "tcp.dial", "register"
	Peer       string // address of the peer, if one is involved
	Transport  string
	Rail       string
	Cause      string // lower case, the cause first
	Hint       string // the knob or the cure, if there is one
	Err        error  // the wrapped cause, for example a syscall.Errno
}

// New makes an error of a code with its cause. Chain the With methods for the rest.
func New(code Code, op, format string, args ...any) *Error {
	return &Error{Code: code, Op: op, Cause: fmt.Sprintf(format, args...)}
}

// Wrap makes an error of a code around the cause err.
func Wrap(code Code, op string, err error) *Error {
	return &Error{Code: code, Op: op, Err: err, Cause: err.Error()}
}

// WithScope returns e, changed; only for the maker of e, before e is shared.
func (e *Error) WithScope(scope Scope, side Side) *Error { e.Scope, e.Side = scope, side; return e }

// WithHint returns e, changed; only for the maker of e, before e is shared.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// WithPeer returns e, changed; only for the maker of e, before e is shared.
func (e *Error) WithPeer(peer, transport, rail string) *Error {
	e.Peer, e.Transport, e.Rail = peer, transport, rail
	return e
}

// Error gives "op: cause (peer …, rail …); hint".
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteString(": ")
	}
	b.WriteString(e.Cause)
	var at []string
	for _, p := range [...][2]string{{"peer", e.Peer}, {"transport", e.Transport}, {"rail", e.Rail}} {
		if p[1] != "" && !strings.Contains(e.Cause, p[1]) {
			at = append(at, p[0]+" "+p[1])
		}
	}
	if len(at) > 0 {
		b.WriteString(" (" + strings.Join(at, ", ") + ")")
	}
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Unwrap returns the wrapped cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, &Error{Code: c}) compare codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Cause == ""
}

// Permanent reports whether no retry can help: the user's mistake, or a fact about the peer's memory.
func (e *Error) Permanent() bool {
	switch e.Code {
	case InvalidArgument, TooManyRequests, AddressNotRegistered, InvalidEntry, PermissionDenied, OutOfMemory,
		NotImplemented, Stale, EngineClosed, Canceled, Timeout, PeerRestarted, NotFound, NoSpace:
		return true
	}
	return false
}

// CodeOf returns the code of err: OK for nil, Internal for an error that is not ours.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// From returns err as *Error; a foreign error becomes Internal. From(nil) is nil.
func From(op string, err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Wrap(Internal, op, err)
}
