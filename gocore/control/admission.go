package control

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// admission lets the connections of peers in: gRPC calls it for each, and hands its proof to the handlers.
type admission struct {
	credentials *security.Credentials
	refused     func(reason transport.Refusal, from string, cause error)
	limit       time.Duration // of a handshake
}

// proof is the result of a connection's handshake; handlers read it from their context.
type proof struct{ security.Proof }

// AuthType implements credentials.AuthInfo.
func (proof) AuthType() string { return "tent" }

// ServerHandshake implements credentials.TransportCredentials. gRPC has set the deadline of the connection.
func (a *admission) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	g, isGuest := raw.(*guest)
	if isGuest {
		turn := &shaking{guest: g, limit: a.limit}
		defer turn.end()
		turn.begin()
		g.judged.Store(a.credentials.Rules())
		raw = turn
	}
	secure, shown, err := a.credentials.Accept(raw)
	if err == nil {
		if isGuest {
			g.identity = shown.Identity
			g.endsAt(shown.Until)
		}
		return secure, proof{shown}, nil
	}
	from, reason := raw.RemoteAddr().String(), reasonOf(err)
	if isGuest {
		if from = g.host; reason == transport.RefusedMalformed && !g.spoke.Load() {
			return nil, nil, err // a probe, by which load balancers and kubelets look for an open port
		}
	}
	a.refused(reason, from, err)
	return nil, nil, err
}

// reasonOf sorts the errors of a handshake for metrics and events.
func reasonOf(err error) transport.Refusal {
	var refused *security.NotAdmitted
	var late net.Error
	switch {
	case errors.As(err, &refused), isAlert(err):
		return transport.RefusedIdentity
	case errors.As(err, &late) && late.Timeout():
		return transport.RefusedSilence
	}
	return transport.RefusedMalformed
}

// admitted returns the proof of the connection by which a call came.
func admitted(ctx context.Context) (security.Proof, error) {
	if p, is := peer.FromContext(ctx); is {
		if shown, is := p.AuthInfo.(proof); is {
			return shown.Proof, nil
		}
	}
	return security.Proof{}, errs.New(errs.Internal, "control", "a call came without a handshake")
}

// mayCall returns why an engine must not call any more. It was disconnected since its handshake, or the rules have
// changed and do not admit it. Then its connection ends. While nothing has changed it is a comparison.
func (s *Server) mayCall(ctx context.Context) error {
	shown, err := admitted(ctx)
	if err != nil {
		return err
	}
	c, g := s.options.Credentials, guestOf(ctx)
	if !c.Barred(shown.ID) {
		rules := c.Rules()
		if g == nil || g.judged.Load() == rules {
			return nil
		}
		reason := c.Still(shown, time.Now())
		if reason == nil {
			g.judged.Store(rules)
			return nil
		}
		s.options.Refused(transport.RefusedIdentity, g.host, reason)
	}
	if g != nil {
		_ = g.Close()
	}
	return errs.New(errs.PeerNotAdmitted, "control", "the engine does not admit this one any more")
}

// ClientHandshake implements credentials.TransportCredentials; clients carry out their handshakes before gRPC.
func (*admission) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

// Info implements credentials.TransportCredentials.
func (*admission) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (a *admission) Clone() credentials.TransportCredentials { return a }

// OverrideServerName implements credentials.TransportCredentials.
func (*admission) OverrideServerName(string) error { return errors.ErrUnsupported }
