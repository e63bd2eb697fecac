package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// Errors of every call: InvalidArgument for a malformed address, PeerUnreachable when its host has no address, nobody
// listens or nobody answers, Protocol when something else does, PeerRestarted for another incarnation, Timeout and
// Canceled as ctx says, EngineClosed after Close, and the error of the peer's handler.

// Open asks the engine at an address for its identity. See Hello for the errors.
func (c *Client) Open(ctx context.Context, address string) (transport.Peer, error) {
	greeting, err := c.Hello(ctx, address)
	return greeting.Peer, err
}

// Hello asks the engine at an address for its identity, always anew. Beside the errors of every call: Protocol for
// another major version, PeerUnreachable for a loopback address that leads to another machine or container, if the
// engine there has no other. It takes at most ConnectTimeout and HandshakeTimeout, twice where a connection from
// earlier turns out to be broken.
func (c *Client) Hello(ctx context.Context, address string) (Greeting, error) {
	self := c.options.Self()
	request := &controlpb.HelloRequest{Version: c.options.Version, From: toIdentity(self)}
	var shown security.Proof
	reply, err := call(ctx, c, "control.hello", transport.Peer{Address: address},
		func(ctx context.Context, k *conn) (*controlpb.HelloReply, error) {
			ctx, cancel := awake(ctx, c.options.HandshakeTimeout, errSilent)
			defer cancel()
			shown = k.shown
			reply, err := k.stub.Hello(ctx, request)
			if err != nil && context.Cause(ctx) == errSilent {
				return nil, unanswered(address, c.options.HandshakeTimeout)
			}
			return reply, err
		})
	if err != nil {
		return Greeting{}, err
	}
	return c.greeting(address, self, shown, reply)
}

// greeting judges the answer to Hello.
func (c *Client) greeting(address string, self transport.Peer, shown security.Proof,
	reply *controlpb.HelloReply) (Greeting, error) {
	fail := func(e *errs.Error) (Greeting, error) {
		return Greeting{}, e.OfPeer(address)
	}
	if version := reply.GetVersion(); major(version) != major(c.options.Version) {
		return fail(protocolError("the engine at %s speaks version %s, this is %s", address,
			quote([]byte(clip(version))), quote([]byte(c.options.Version))).
			WithHint("both sides need the same major version of tent"))
	}
	peer, err := fromIdentity(shown, reply.GetSelf())
	if err != nil {
		return fail(errs.From("control.hello", err))
	}
	if meta.IsLoopback(address) && peer.Network != self.Network && !slices.ContainsFunc(reply.GetAddresses(), remote) {
		return fail(errs.New(errs.PeerUnreachable, "control.hello",
			"%s is a loopback address, but the engine %q that answers there runs on another machine or in another "+
				"container", address, peer.Name).
			WithScope(errs.ScopeLink, errs.SidePath).
			WithHint("data cannot follow a tunnel: set rpc_server_hostname at the peer and use its address on the " +
				"network"))
	}
	peer.Address = address // the one that leads there from here
	return Greeting{Peer: peer, Proof: shown}, nil
}

// remote reports that an address may lead to its engine from elsewhere.
func remote(address string) bool { return !meta.IsLoopback(address) }

// Describe returns the peer's description, or nil when it is the known one still. Without a known one it is fetched
// whole, otherwise the peer may send its changes alone.
func (c *Client) Describe(ctx context.Context, peer transport.Peer,
	known *segment.Description) (*segment.Description, error) {
	request := &controlpb.DescribeRequest{Call: c.header(), Update: true}
	if known != nil {
		request.KnownEpoch = known.Epoch
	}
	asked := clock.Now()
	type answer struct {
		*controlpb.DescribeReply
		shown security.Proof
	}
	reply, err := call(ctx, c, "control.describe", peer, func(ctx context.Context, k *conn) (answer, error) {
		reply, err := k.stub.Describe(ctx, request, grpc.MaxCallRecvMsgSize(descriptionMax))
		return answer{reply, k.shown}, err
	})
	if err != nil {
		return nil, err
	}
	c.options.Proved(peer, reply.shown)
	if len(reply.GetDescription()) == 0 {
		return nil, nil
	}
	description, err := segment.Decode(reply.GetDescription())
	if err != nil {
		return nil, protocolError("the peer's description is malformed: %v", err).OfPeer(peer.Address)
	}
	if !peer.ID.IsZero() && description.ID != peer.ID {
		return nil, protocolError("the peer describes another engine").OfPeer(peer.Address)
	}
	description.Transports = fromTransports(reply.GetTransports())
	date(description.Regions, reply.DescribeReply, asked, clock.Now())
	if since := reply.GetSince(); since != 0 {
		if known == nil || since != known.Epoch {
			return nil, protocolError("the peer tells changes since another epoch than ours").
				OfPeer(peer.Address)
		}
		if description, err = known.Updated(description, reply.GetClosed()); err != nil {
			return nil, protocolError("the peer's changes are malformed: %v", err).OfPeer(peer.Address)
		}
	}
	return description, nil
}

// date says when regions were registered, on our clock: at the latest, since the peer has read its own one between
// asked and answered. Where its reading lies between them it is the clock of this host, and exact.
func date(regions []segment.Region, reply *controlpb.DescribeReply, asked, answered clock.Time) {
	registered, theirs := reply.GetRegistered(), clock.Time(reply.GetNow())
	if len(registered) != len(regions) { // an older peer's answer has none
		return
	}
	ahead := theirs.Sub(answered)
	if asked <= theirs && theirs <= answered {
		ahead = 0
	}
	for i, at := range registered {
		if at != 0 {
			regions[i].Registered = max(1, clock.Time(at)-clock.Time(ahead))
		}
	}
}

// Call sends a message to the peer's transport of that name and returns its answer. The peer may see the message twice
// when the connection breaks meanwhile.
func (c *Client) Call(ctx context.Context, peer transport.Peer, transportName string, message []byte) ([]byte, error) {
	if err := c.checkSize(peer, message); err != nil {
		return nil, err
	}
	request := &controlpb.TransportRequest{Call: c.header(), Transport: transportName, Message: message}
	reply, err := call(ctx, c, "control.call", peer,
		func(ctx context.Context, k *conn) (*controlpb.TransportReply, error) {
			return k.stub.Transport(ctx, request)
		})
	return reply.GetMessage(), err
}

// Notify delivers a notification and returns when the peer has taken it. An error leaves open whether it was: send it
// again with the same sequence, and only then the next one; so it arrives exactly once and in order.
func (c *Client) Notify(ctx context.Context, peer transport.Peer, seq uint64, message []byte) error {
	if err := c.checkSize(peer, message); err != nil {
		return err
	}
	request := &controlpb.NotifyRequest{Call: c.header(), Sequence: seq, Message: message}
	_, err := call(ctx, c, "control.notify", peer,
		func(ctx context.Context, k *conn) (*controlpb.NotifyReply, error) {
			return k.stub.Notify(ctx, request)
		})
	return err
}

// Probe returns when the peer has answered. A peer without an ID is any engine that answers at its address.
func (c *Client) Probe(ctx context.Context, peer transport.Peer) error {
	request := &controlpb.ProbeRequest{Call: c.header()}
	_, err := call(ctx, c, "control.probe", peer,
		func(ctx context.Context, k *conn) (*controlpb.ProbeReply, error) { return k.stub.Probe(ctx, request) })
	return err
}

func (c *Client) header() *controlpb.Call {
	return &controlpb.Call{From: toIdentity(c.options.Self())}
}

func restarted(address string) *errs.Error {
	return errs.New(errs.PeerRestarted, "control", "the engine at %s was restarted: another incarnation answers",
		address).
		WithScope(errs.ScopeLink, errs.SideRemote).OfPeer(address).WithHint("open the segment again")
}

func (c *Client) checkSize(peer transport.Peer, message []byte) error {
	if len(message) <= c.options.MessageMax {
		return nil
	}
	return errs.New(errs.InvalidArgument, "control", "a message of %d bytes, more than %d", len(message),
		c.options.MessageMax).
		WithScope(errs.ScopeSlice, errs.SideLocal).OfPeer(peer.Address)
}

// call runs do on a connection to the peer, by whichever of its addresses answers; see ways. Do may run several times,
// side by side.
func call[R any](ctx context.Context, c *Client, op string, peer transport.Peer,
	do func(context.Context, *conn) (R, error)) (R, error) {
	var none R
	if err := meta.CheckAddress(peer.Address); err != nil {
		return none, err
	}
	ctx, cancel := c.awake(ctx)
	defer cancel()
	addresses := c.ways.of(peer)
	if len(addresses) == 1 {
		return callAt(ctx, c, op, peer, do)
	}
	return race(ctx, peer.Address, addresses, func(ctx context.Context, address string) (R, error) {
		if !c.ways.may(peer, address, time.Now()) {
			return none, errs.New(errs.PeerUnreachable, op, "%s has not answered %d times within %v", address, wayTries,
				wayEvery).WithScope(errs.ScopeLink, errs.SidePath).OfPeer(peer.Address)
		}
		at := peer
		at.Address = address
		r, err := callAt(ctx, c, op, at, do)
		if err == nil {
			c.ways.prefer(peer, address)
		}
		return r, err
	})
}

// awake returns a context with the limit of ctx, or CallTimeout where it has none, by the time in which this process is
// let run. It outlives the deadline of ctx by its pauses, and ends at once where its caller leaves.
func (c *Client) awake(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := c.options.CallTimeout
	if at, bounded := ctx.Deadline(); bounded {
		limit = time.Until(at)
	}
	longer, cancel := clock.WithTimeout(context.WithoutCancel(ctx), limit)
	leave := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})
	return longer, func() {
		leave()
		cancel()
	}
}

// callAt runs do on a connection to one address, and once more on a new one if the first turns out to be broken. The
// peer may have been restarted since, and then answers at once.
func callAt[R any](ctx context.Context, c *Client, op string, peer transport.Peer,
	do func(context.Context, *conn) (R, error)) (R, error) {
	var none R
	for attempt := 0; ; attempt++ {
		k, err := c.acquire(ctx, peer.Address)
		if err != nil {
			if !peer.ID.IsZero() {
				err = c.ofKnown(peer.Address, err)
			}
			return none, err
		}
		if !peer.ID.IsZero() && peer.ID != k.shown.ID {
			c.release(k, false)
			return none, restarted(peer.Address)
		}
		r, err := do(ctx, k)
		broken := isBroken(err)
		c.release(k, broken)
		if err == nil {
			return r, nil
		}
		if !broken || attempt > 0 || ctx.Err() != nil {
			return none, c.explain(ctx, op, peer.Address, err)
		}
	}
}

// isBroken reports that gRPC lost the connection, as opposed to an answer of the peer.
func isBroken(err error) bool {
	return status.Code(err) == codes.Unavailable && len(status.Convert(err).Details()) == 0
}

// notImplemented returns the error of a call that older peers do not have, NotImplemented from one of these.
func notImplemented(op string, peer transport.Peer, err error) error {
	if status.Code(err) != codes.Unimplemented {
		return err
	}
	return errs.New(errs.NotImplemented, op, "the peer does not know this call").
		WithScope(errs.ScopeSlice, errs.SideRemote).OfPeer(peer.Address)
}

// explain turns an error of gRPC into ours.
func (c *Client) explain(ctx context.Context, op, address string, err error) error {
	var known *errs.Error
	if errors.As(err, &known) {
		return known
	}
	if fault := faultOf(address, err); fault != nil {
		return fault
	}
	if c.alive.Err() != nil {
		return closedError(address)
	}
	if ctx.Err() != nil {
		return ended(ctx, op, address)
	}
	text := errs.Printable(status.Convert(err).Message(), faultTextMax) // perhaps of the peer, or of a stranger
	e := errs.New(errs.RpcServiceError, op, "%s", text).WithScope(errs.ScopeLink, errs.SideRemote).
		OfPeer(address)
	e.Err = err
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled: // canceled, but not by us: the server is shutting down
		e.Code, e.Cause = errs.PeerUnreachable, "the connection broke: "+text
	case codes.DeadlineExceeded:
		e.Code = errs.Timeout
	case codes.Unimplemented:
		e.Code, e.Cause = errs.Protocol,
			"something else listens at "+address+": an HTTP/2 server that is no tent engine ("+text+")"
		e.WithHint("give the address that the peer's engine shows as its address")
	}
	return e
}

// ofKnown is the error of a dial to an engine that has answered at its address before: nothing is wrong with that.
func (c *Client) ofKnown(address string, err error) error {
	var e *errs.Error
	switch {
	case errors.Is(err, errSilent):
		return unanswered(address, c.options.HandshakeTimeout)
	case !errors.As(err, &e) || e.Code != errs.PeerUnreachable:
		return err
	}
	known := *e
	known.Hint = ""
	if errors.Is(err, errDropped) {
		known.Cause = address + " ended the connection before an answer: its engine is closing, or has ended"
	}
	return &known
}

// unanswered is the end of a call to an engine that holds the connection open and does not answer. Its side is unknown:
// only a refusal or a reset by its host proves that a peer is gone.
func unanswered(address string, limit time.Duration) error {
	return errs.New(errs.PeerUnreachable, "control",
		"%s accepts connections, but its engine has not answered for %v: stopped or overloaded", address, limit).
		WithScope(errs.ScopeLink, errs.SideUnknown).OfPeer(address)
}

// ended returns the error of a call after the end of its ctx.
func ended(ctx context.Context, op, address string) error {
	code, cause := errs.Canceled, "canceled by the caller"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code, cause = errs.Timeout, "no answer from "+address+" in the time given"
	}
	e := errs.New(code, op, "%s", cause).WithScope(errs.ScopeLink, errs.SideUnknown).OfPeer(address)
	e.Err = ctx.Err()
	return e
}

func quote(text []byte) string { return fmt.Sprintf("%q", text) }
