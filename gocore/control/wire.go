package control

import (
	"context"
	"errors"
	"math"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// faultTextMax bounds each text of a fault: all of them travel in a header.
const faultTextMax = 1024

// toStatus turns a handler's error into a gRPC status that carries it whole.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	e := fromContext(err)
	fault := &controlpb.Fault{Code: uint32(e.Code), Scope: uint32(e.Scope), Side: uint32(e.Side),
		Collateral: e.Collateral,
		Op:         clip(e.Op), Peer: clip(e.Peer), Transport: clip(e.Transport), Rail: clip(e.Rail),
		Cause: clip(e.Cause),
		Hint:  clip(e.Hint)}
	plain := status.New(codes.Unknown, "tent: "+e.Code.String())
	detailed, err := plain.WithDetails(fault)
	if err != nil { // cannot be: the texts are valid UTF-8
		return plain.Err()
	}
	return detailed.Err()
}

// fromContext is errs.From, but a handler that gave up because its caller did says so.
func fromContext(err error) *errs.Error {
	var known *errs.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.DeadlineExceeded):
		return errs.Wrap(errs.Timeout, "control", err)
	case errors.Is(err, context.Canceled):
		return errs.Wrap(errs.Canceled, "control", err)
	}
	return errs.Wrap(errs.Internal, "control", err)
}

// faultOf returns the peer's error in a gRPC error, as seen from here, or nil.
func faultOf(address string, err error) *errs.Error {
	for _, detail := range status.Convert(err).Details() {
		fault, ok := detail.(*controlpb.Fault)
		if !ok || fault.GetCode() == 0 || fault.GetCode() > 1<<16-1 {
			continue
		}
		text := func(s string) string { return errs.Printable(s, faultTextMax) }
		e := &errs.Error{Code: errs.Code(fault.GetCode()), Scope: errs.Scope(fault.GetScope() & 3),
			Side: turned(errs.Side(fault.GetSide() & 3)), Collateral: fault.GetCollateral(), Op: text(fault.GetOp()),
			Peer: text(fault.GetPeer()), Transport: text(fault.GetTransport()), Rail: text(fault.GetRail()),
			Cause: text(fault.GetCause()), Hint: text(fault.GetHint())}
		if e.Peer == "" {
			e.Peer = address
		}
		return e
	}
	return nil
}

// turned is a side seen from the other side.
func turned(side errs.Side) errs.Side {
	switch side {
	case errs.SideLocal:
		return errs.SideRemote
	case errs.SideRemote:
		return errs.SideLocal
	}
	return side
}

func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), faultTextMax)], "\uFFFD")
}

func toIdentity(peer transport.Peer) *controlpb.Identity {
	return &controlpb.Identity{Address: strings.ToValidUTF8(peer.Address, "\uFFFD"),
		Name:      strings.ToValidUTF8(peer.Name, "\uFFFD"),
		MachineId: strings.ToValidUTF8(peer.MachineID, "\uFFFD"), Network: strings.ToValidUTF8(peer.Network, "\uFFFD")}
}

// fromIdentity joins the proof of a connection with the other end's words about itself.
func fromIdentity(shown security.Proof, id *controlpb.Identity) (transport.Peer, error) {
	for _, text := range []string{id.GetAddress(), id.GetName(), id.GetMachineId(), id.GetNetwork()} {
		if len(text) > identityMax {
			return transport.Peer{}, protocolError(
				"the peer gives a name, an address, a machine id or a network of more than %d bytes", identityMax)
		}
	}
	text := func(s string) string { return errs.Printable(s, identityMax) }
	return transport.Peer{Address: text(id.GetAddress()), Name: text(id.GetName()), MachineID: text(id.GetMachineId()),
		Network: text(id.GetNetwork()), ID: shown.ID, Identity: shown.Identity}, nil
}

// toTransports and fromTransports carry the transports that an engine has open.
func toTransports(open map[string]transport.Versions) (list []*controlpb.Transport) {
	for name, v := range open {
		list = append(list, &controlpb.Transport{Name: name, First: uint32(v.First), Last: uint32(v.Last)})
	}
	return list
}

func fromTransports(list []*controlpb.Transport) map[string]transport.Versions {
	open := make(map[string]transport.Versions, min(len(list), listPeerMax))
	for _, t := range list[:min(len(list), listPeerMax)] {
		open[t.GetName()] = transport.Versions{First: uint16(min(t.GetFirst(), math.MaxUint16)),
			Last: uint16(min(t.GetLast(), math.MaxUint16))}
	}
	return open
}

func protocolError(format string, args ...any) *errs.Error {
	return errs.New(errs.Protocol, "control", format, args...).WithScope(errs.ScopeLink, errs.SideRemote)
}
