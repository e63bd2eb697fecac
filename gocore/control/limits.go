package control

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	grpctap "google.golang.org/grpc/tap"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Limits bound the memory, sockets and time of a server that callers can take. Zero means the default in brackets.
//
// Each answers a flood that one caller can send. Where a table is full, the one that has least to lose goes: a
// connection without a word, then one without a call, then the one that was idle longest. An honest caller speaks at
// once, and dials again without an error after its idle connection was closed.
type Limits struct {
	Connections        int // (1024) all; far from the limit of open files that most systems set
	ConnectionsPerPeer int // (8) of one engine, which needs one, and another one while it replaces a broken one
	Strangers          int // (256) that have made no call yet: handshakes at once
	SilentPerHost      int // (16) of one host that have not said a word
	CallsPerSecond     int // (4000) of one engine, then its calls wait; 16 KiB of a description count as a call
	Reception          int // (32 MiB) bytes of messages that have not arrived whole
}

const (
	callMax         = 5 * time.Second // a call, from its first byte to its answer
	idleMax         = 2 * time.Minute // a connection without calls; clients close theirs after half of that
	pingEvery       = 30 * time.Second
	pingPatience    = 10 * time.Second
	headersMax      = 16 << 10
	waitMax         = time.Second // a call beyond CallsPerSecond; then it is refused
	describePerCall = 16 << 10    // bytes of a description that count as one call
)

func (l Limits) withDefaults() Limits {
	return Limits{Connections: cmp.Or(l.Connections, 1024), ConnectionsPerPeer: cmp.Or(l.ConnectionsPerPeer, 8),
		Strangers: cmp.Or(l.Strangers, 256), SilentPerHost: cmp.Or(l.SilentPerHost, 16),
		CallsPerSecond: cmp.Or(l.CallsPerSecond, 4000), Reception: cmp.Or(l.Reception, 32<<20)}
}

// limitOptions are the limits that gRPC itself enforces.
func (s *Server) limitOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(s.options.MessageMax + overhead),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.MaxHeaderListSize(headersMax),
		grpc.ConnectionTimeout(s.options.HandshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTolerated}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleMax, Time: pingEvery,
			Timeout: pingPatience}),
		grpc.InTapHandle(callBegins),
		grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer),
	}
}

// callBegins sees a call when its first bytes have come, before its message. It limits the call in time, and counts
// its bytes while they arrive.
func callBegins(ctx context.Context, _ *grpctap.Info) (context.Context, error) {
	g := guestOf(ctx)
	if g == nil {
		return ctx, nil
	}
	r := &reception{guest: g}
	g.of.begin(g)
	limited, cancel := context.WithTimeout(context.WithValue(ctx, receptionKey{}, r), callMax)
	context.AfterFunc(ctx, func() { // the end of the call, whichever it is
		cancel()
		g.of.end(r)
	})
	return limited, nil
}

// reception is one call from its first byte to its end. Arrived is guarded by guests.mu.
type reception struct {
	guest   *guest
	arrived bool // the message is there as a whole
}

type receptionKey struct{}

// messageArrived notes that the call's message is there, and waits for the caller's turn.
func messageArrived(ctx context.Context) error {
	r, _ := ctx.Value(receptionKey{}).(*reception)
	if r == nil {
		return nil
	}
	g := r.guest
	g.of.arrived(r)
	wait := g.of.charge(g, 1, waitMax)
	if wait > waitMax {
		return g.of.refuse(g, transport.RefusedRate, "more than %d calls a second came from this peer",
			g.of.limits.CallsPerSecond).WithHint("security/limits/calls_per_second of the engine that was called")
	}
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// described charges the caller for the bytes of a description.
func described(ctx context.Context, bytes int) {
	if g := guestOf(ctx); g != nil && bytes > describePerCall {
		g.of.charge(g, bytes/describePerCall, 0)
	}
}

// guestOf returns the connection that a call came by, nil if it came by none.
func guestOf(ctx context.Context) *guest {
	if p, is := peer.FromContext(ctx); is {
		if address, is := p.Addr.(guestAddr); is {
			return address.guest
		}
	}
	return nil
}

// hostOf returns the host that a call came from, "" if it came from none.
func hostOf(ctx context.Context) string {
	if g := guestOf(ctx); g != nil {
		return g.host
	}
	return ""
}

func (s *guests) refuse(g *guest, reason transport.Refusal, format string, args ...any) *errs.Error {
	e := errs.New(errs.TooManyRequests, "control", format, args...).WithScope(errs.ScopeLink, errs.SideLocal)
	s.refused(reason, g.host, e)
	return e
}

// pace lets calls pass at a rate, with a second's worth at once (the generic cell rate algorithm, ITU-T I.371).
type pace struct{ due time.Time }

// take charges n calls and returns the time until they may pass. It charges nothing when that is beyond limit; without
// a limit it always does.
func (p *pace) take(now time.Time, n, perSecond int, limit time.Duration) time.Duration {
	if full := now.Add(-time.Second); p.due.Before(full) {
		p.due = full
	}
	due := p.due.Add(time.Duration(n) * time.Second / time.Duration(perSecond))
	wait := due.Sub(now)
	if limit == 0 || wait <= limit {
		p.due = due
	}
	return wait
}
