// Package control carries the calls between two engines before and beside the bytes. They are hello, description of
// regions, messages from one end of a transport to the other, notifications, reports, probes. It runs over gRPC; a call
// takes some 100 µs on one host, so nothing of it is on the data path.
//
//	engine A                                   engine B
//	Client.Open(address)  ---- TLS ----------> both ends prove their keys: transport.Peer's ID and Identity
//	                      ---- Hello --------> Server: version, and its words about itself
//	Client.Describe       ---- Describe -----> Handler.Describe
//	Client.Changed        ---- Changed ------> Handler.Changed    (descriptors are others now: describe again)
//	Client.Call           ---- Transport ----> Handler.Serve      (a transport's handshake, withdrawal, fence)
//	Client.Notify         ---- Notify -------> Handler.Notified
//	Client.Report         ---- Report -------> Handler.Reported   (the end of a transfer with a trace)
//	Client.Probe          ---- Probe --------> answered by the server itself
//
// The connection names caller and callee, never a message (gocore/security). A call to another engine than the one that
// is meant ends as PeerRestarted before anything is sent, so that nobody talks to the successor of a process in the
// belief that it still knows of earlier promises.
//
// # Failing at once
//
// gRPC hides connections: it dials behind the caller's back, waits, backs off, and reports "unavailable". Here the
// client dials itself and gives gRPC one finished connection after the other (dial.go), so that a refused port, an
// unknown host and a foreign service are told apart in the time they take. A connection that broke is replaced, and the
// call is tried once more on the new one. A peer that offers several addresses is called by any that answers (ways.go).
//
// # Goroutines and shutdown
//
// Server owns one goroutine per listener and those of gRPC per connection; Close refuses new connections, ends silent
// ones, gives calls a short grace, cancels the rest and waits. Client owns one goroutine per dial under way and gRPC's
// per connection; Close cancels dials, closes connections and waits. Neither has a ticker: an idle one costs no CPU.
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
	Peer      transport.Peer // Address is the one that was dialled: the one that leads there
	Proof     security.Proof // of its connection
	Version   string
	Addresses []string // on which its control plane listens
}

// major of a version "major.minor".
func major(version string) string {
	text, _, _ := strings.Cut(version, ".")
	return text
}
