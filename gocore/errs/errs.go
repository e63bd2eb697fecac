// Package errs is the vocabulary of failures. An Error is made once, where the cause is first known, and wrapped
// with %w above. Failover and the Python layer act on code, scope and side; the text is for people.
package errs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
)

// Code is the kind of a failure. Values up to 200 are upstream's status codes; those from 300 on are tent's own.
type Code uint16

// Codes. Every one has a line in the table below.
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
	PeerUnreachable      Code = 301
	PeerRestarted        Code = 302
	EngineClosed         Code = 303
	Canceled             Code = 304
	Timeout              Code = 305
	Lost                 Code = 306
	Withdrawn            Code = 307
	StaleGeneration      Code = 308
	NoRoute              Code = 309
	OutOfMemory          Code = 310
	Protocol             Code = 311
	Stale                Code = 312
	Corrupted            Code = 313
	NotFound             Code = 314
	NoSpace              Code = 315
	StorageError         Code = 316
	PeerNotAdmitted      Code = 317
	NotHere              Code = 318
	Replaced             Code = 320
)

// about is the name, the meaning and the cure of a code; docs/reference/codes.md is generated from it.
type about struct {
	name, help, cure string
	permanent        bool // no retry can help: the user's mistake, or a fact about the peer's memory
}

const again = "None is needed: the slice is sent again."

var codes = map[Code]about{
	OK: {"OK", "Nothing went wrong.", "", false},
	InvalidArgument: {"INVALID_ARGUMENT", "An argument or a setting is wrong.",
		"The error names it, and what it takes.", true},
	TooManyRequests: {"TOO_MANY_REQUESTS", "A bound would be exceeded: a batch's capacity, max_pending_requests, or " +
		"the file descriptors of the process.", "Wait for some to end, or raise the bound.", true},
	AddressNotRegistered: {"ADDRESS_NOT_REGISTERED",
		"The bytes are not inside a registered region of their owner, or no region has that name.",
		"Register them at the end that `side` names, with a name for peers, and keep them until the transfer has " +
			"ended.", true},
	DeviceNotFound: {"DEVICE_NOT_FOUND", "The named device is not there.", "`tent doctor` lists those that are.",
		false},
	InvalidEntry: {"INVALID_ENTRY", "An id is unknown, or belongs to another engine.",
		"Use ids of this engine, while their objects are open.", true},
	RdmaError: {"RDMA_ERROR", "The RDMA stack refused.", "`tent doctor` and the kernel's log say more.", false},
	CudaError: {"CUDA_ERROR", "The CUDA driver or runtime refused.",
		"The error has the driver's own; after an illegal address or ECC only a restart of the process helps.", false},
	MetadataError: {"METADATA_ERROR", "The description of a segment cannot be had or used.",
		"`tent doctor` tries the metadata service of the settings.", false},
	RpcServiceError: {"RPC_SERVICE_ERROR",
		"The control plane failed, or the other side does not speak a version that this engine speaks.",
		"Another `rpc_server_port` where it is in use; one release on both sides where versions differ.", false},
	MalformedJSON: {"MALFORMED_JSON", "A text is not JSON.", "The error names the place.", false},
	Internal:      {"INTERNAL_ERROR", "A defect of tent.", "Report it, with its text.", false},
	NotImplemented: {"NOT_IMPLEMENTED", "The call is known and not in this version.",
		"The error names another way, where there is one.", true},
	PermissionDenied: {"PERMISSION_DENIED", "The owner of the memory does not allow it.",
		"`permission=` at the owner; the mode of a file, and `readonly=` of its open.", true},
	PeerUnreachable: {"PEER_UNREACHABLE", "Nobody answers, or the connection broke and could not be made again.",
		"`tent doctor --peer` says where the way ends. Open the segment again.", false},
	PeerRestarted: {"PEER_RESTARTED", "Another incarnation answers at the peer's address.", "Open the segment again.",
		true},
	EngineClosed: {"ENGINE_CLOSED", "The engine has been closed.", "Make another one; a peer has to be opened again.",
		true},
	Canceled: {"CANCELED", "The user canceled the request.", "None is needed.", true},
	Timeout: {"TIMEOUT", "A deadline or the stall limit was reached.",
		"A longer `timeout`, a higher class, `transfer_stall_timeout`.", true},
	Lost:            {"LOST", "A lane or a rail broke under the slice; another one may carry it.", again, false},
	Withdrawn:       {"WITHDRAWN", "The core asked for this completion; the bytes were not delivered.", again, false},
	StaleGeneration: {"STALE_GENERATION", "The rail, lane or region has a new generation.", again, false},
	NoRoute: {"NO_ROUTE", "No route is left that can carry the bytes.",
		"`engine.explain` has the reason of each transport.", false},
	OutOfMemory: {"OUT_OF_MEMORY", "The system has no memory for this.", "The error says how much there is.", true},
	Protocol: {"PROTOCOL", "The other side broke the wire protocol.", "Report it, with the versions of both sides.",
		false},
	Stale: {"STALE_ID", "An id or a handle names something that has ended.", "Make or open it again.", true},
	Corrupted: {"CORRUPTED", "The bytes that arrived are not those that were sent.",
		"Look at the path: the NIC, the cable, the memory.", false},
	NotFound: {"NOT_FOUND", "No file has that name, or it is gone.", "`create=True` makes it.", true},
	NoSpace: {"NO_SPACE", "The file system is full, or a quota or the largest file size is reached.",
		"Free some, or raise the quota or `ulimit -f`.", true},
	StorageError: {"STORAGE_ERROR", "The device or the file system under a file has failed.",
		"The kernel's log says why.", false},
	NotHere: {"NOT_HERE",
		"A transport cannot use this memory on this machine; a region lives on the other transports.",
		"None is needed, unless the transport is `required`; `Region.transports` has the reason.", false},
	Replaced: {"REPLACED", "The owner of the region has replaced its descriptor; the new one leads there.", again,
		false},
	PeerNotAdmitted: {"PEER_NOT_ADMITTED",
		"One side does not admit the other one: another user, another key, or other security settings.",
		"The log of the side that refused has the reason, as `peer_refused`.", true},
}

// String returns the code's name as it crosses into Python, for example "PEER_UNREACHABLE".
func (c Code) String() string {
	if a, ok := codes[c]; ok {
		return a.name
	}
	return fmt.Sprintf("CODE_%d", uint16(c))
}

// Help returns the meaning of a code in a sentence.
func (c Code) Help() string { return codes[c].help }

// Cure returns the user's next step in a sentence or two.
func (c Code) Cure() string { return codes[c].cure }

// Permanent reports whether no retry of an error with this code can help.
func (c Code) Permanent() bool { return codes[c].permanent }

// Codes returns every code in the order of its number.
func Codes() []Code { return slices.Sorted(maps.Keys(codes)) }

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

// Side is the end that failed, where that is known.
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
	Op         string // the attempted operation: "tcp.dial", "register"
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

// Wrap makes an error of a code around the cause err. Where that is a limit of the system, it names the cure.
func Wrap(code Code, op string, err error) *Error {
	_, cure := limitOf(err)
	return &Error{Code: code, Op: op, Err: err, Cause: err.Error(), Hint: cure}
}

// limitOf returns the code and the cure of a limit of the system that was the cause of err; Internal if none was.
func limitOf(err error) (code Code, hint string) {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return TooManyRequests, "the process has no file descriptor left: raise ulimit -n"
	case errors.Is(err, syscall.ENFILE):
		return TooManyRequests, "the machine has no file descriptor left: raise fs.file-max"
	case errors.Is(err, syscall.ENOMEM):
		return OutOfMemory, ""
	}
	return Internal, ""
}

// MemoryGone makes the error of a slice that lost its registered memory at the given end.
func MemoryGone(op string, side Side) *Error {
	return New(AddressNotRegistered, op, "the memory is not mapped, or not for this use").WithScope(ScopeSlice, side).
		WithHint("keep the buffer until its region is unregistered")
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

// OfPeer is WithPeer for an error of no transport.
func (e *Error) OfPeer(peer string) *Error { return e.WithPeer(peer, "", "") }

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
func (e *Error) Permanent() bool { return e.Code.Permanent() }

// EndsPeer reports whether the error proves the end of the peer's process or incarnation. Another one answers at its
// address then, or its host refuses or resets.
func (e *Error) EndsPeer() bool {
	return e.Code == PeerRestarted || e.Code == PeerUnreachable && e.Side == SideRemote
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
