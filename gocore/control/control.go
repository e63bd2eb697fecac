package control

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

//go:generate ../../tools/gen_proto.sh

// Version of the protocol, spoken where Options.Version is empty. Engines with equal majors understand each other.
const Version = "1.0"

// Handler answers the calls of peers. Its methods are called from any goroutine, several at once, and should end with
// ctx. An *errs.Error reaches the caller as it is, its side turned round; a panic reaches it as Internal.
type Handler interface {
	// Describe returns the peer's part of our regions, nil when it has not changed since the epoch known (0: nothing is
	// known). With update it may list the changes since then alone. Nobody changes the offer afterwards.
	Describe(ctx context.Context, from transport.Peer, known uint64, update bool) (*Offer, error)
	// Serve passes a message to the transport of that name. It may see a message twice when a connection broke between
	// the message and its answer, so messages must be idempotent.
	Serve(ctx context.Context, from transport.Peer, transport string, message []byte) ([]byte, error)
	// Notified takes a notification; nil means that it was taken, now or before. The caller repeats a notification
	// without an answer, and (from.ID, seq) marks repetitions, which may run beside the call that was cut off.
	// Message is the handler's own.
	Notified(ctx context.Context, from transport.Peer, seq uint64, message []byte) error
	// Changed hears that a peer's description has a newer epoch. It does not block.
	Changed(from transport.Peer, epoch uint64)
	// Reported hears of the peer's transfers with us that have a trace. Their texts are fit to be seen.
	Reported(from transport.Peer, list []Traced)
}

// Offer is the answer to Describe. It may be made once for many peers.
type Offer struct {
	Encoded    []byte                        // by segment.Encode, with descriptors
	Transports map[string]transport.Versions // those that are open
	Since      uint64                        // the regions are those that changed since that epoch; 0: all of them
	Closed     []mem.RegionID                // since then
	Registered []clock.Time                  // when each region was, in the order of Encoded; 0: not said
}

// Options of a server and a client; an engine gives the same to both. Zero means the default in brackets.
type Options struct {
	// Self describes our own engine. It is called for each call, from any goroutine.
	Self    func() transport.Peer
	Version string // "major.minor" (Version)
	// Credentials name our engine and say whom it admits. Never nil.
	Credentials *security.Credentials
	// Dial makes a client's connections; nil is net.Dialer's. For proxies, and for faults that are injected.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger // of panics in handlers (slog.Default)
	// Refused hears of everything that a server has refused; see transport.Host. Nil is nobody.
	Refused func(reason transport.Refusal, from string, cause error)
	// Admitted hears of each connection by which an engine made a call, with the first call; isNew if the engine had
	// none. Nil is nobody.
	Admitted func(from transport.Peer, shown security.Proof, isNew bool)
	// Called hears of each further call on a connection. Nil is nobody.
	Called func(from transport.Peer, shown security.Proof)
	// Proved hears of each engine that has answered Describe, with the proof of the connection. Nil is nobody.
	Proved func(peer transport.Peer, shown security.Proof)

	ConnectTimeout   time.Duration // until TCP is connected (1.5 s: one retransmission of the first packet)
	HandshakeTimeout time.Duration // from there until the peer has answered (1.8 s)
	CallTimeout      time.Duration // of calls without a deadline in ctx (10 s)
	IdleTimeout      time.Duration // until an unused connection is closed (60 s)
	ConnectionsMax   int           // connections of a client (1024)
	MessageMax       int           // bytes of a message of Transport or Notify (1 MiB)
	Limits           Limits        // of a server
	// Besides are addresses of this machine on which a server listens too, by the port of its first address. One that
	// cannot be bound is left out: nobody asked for it by name.
	Besides []netip.Addr
}

const (
	descriptionMax     = 64 << 20 // bytes of a Describe answer
	answerMax          = 4 << 20  // bytes of any other; the longest of ours has news of 65,536 regions, 1.4 MB
	overhead           = 4 << 10  // bytes of a request beside its message
	streamsMax         = 32       // calls at once on one connection
	identityMax        = 255      // bytes of a name, an address or a machine id
	listPeerMax        = 64       // addresses and transports taken from a peer
	closeGrace         = 500 * time.Millisecond
	handlerGrace       = time.Second
	keepaliveInterval  = 20 * time.Second // between pings while a call waits
	keepalivePatience  = 10 * time.Second
	keepaliveTolerated = 10 * time.Second
)

func (o Options) withDefaults() Options {
	o.Version, o.Log = cmp.Or(o.Version, Version), cmp.Or(o.Log, slog.Default())
	if o.Refused == nil {
		o.Refused = func(transport.Refusal, string, error) {}
	}
	if o.Admitted == nil {
		o.Admitted = func(transport.Peer, security.Proof, bool) {}
	}
	if o.Called == nil {
		o.Called = func(transport.Peer, security.Proof) {}
	}
	if o.Proved == nil {
		o.Proved = func(transport.Peer, security.Proof) {}
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 1500*time.Millisecond)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 1800*time.Millisecond)
	o.CallTimeout = cmp.Or(o.CallTimeout, 10*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, time.Minute)
	o.ConnectionsMax = cmp.Or(o.ConnectionsMax, 1024)
	o.MessageMax = cmp.Or(o.MessageMax, 1<<20)
	o.Limits = o.Limits.withDefaults()
	return o
}

// Greeting is a peer's own description of itself.
type Greeting struct {
	Peer  transport.Peer // Address is the one that was dialled: the one that leads there
	Proof security.Proof // of its connection
}

// major of a version "major.minor".
func major(version string) string {
	text, _, _ := strings.Cut(version, ".")
	return text
}
