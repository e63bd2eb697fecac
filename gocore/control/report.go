package control

import (
	"context"

	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

const (
	// TraceMax bounds the caller's name for a transfer, in bytes.
	TraceMax = 64
	// ReportsMax bounds the reports of one call.
	ReportsMax = 64
	causeMax   = 255 // bytes of the cause in a report
)

// Turn is the way that a transfer took: its end, or another transport.
type Turn uint8

// Turns, by their numbers in control.proto.
const (
	TurnCompleted Turn = iota + 1
	TurnFailed
	TurnCanceled
	TurnTimedOut
	TurnFailover
)

var turns = [...]string{TurnCompleted: "completed", TurnFailed: "failed", TurnCanceled: "canceled",
	TurnTimedOut: "timed out", TurnFailover: "failover"}

// String returns the turn as the event at the peer has it.
func (t Turn) String() string { return turns[t] }

// Traced is one turn of a transfer that has a trace.
type Traced struct {
	Trace string
	Turn  Turn
	Bytes uint64    // moved between the two engines so far
	Code  errs.Code // of the error that led here, 0 for none
	Cause string
}

// Report sends a peer turns of traced transfers, at most ReportsMax. The peer may see them twice when the connection
// breaks meanwhile. NotImplemented: the peer is older than this call.
func (c *Client) Report(ctx context.Context, peer transport.Peer, list []Traced) error {
	request := &controlpb.ReportRequest{Call: c.header(), Reports: make([]*controlpb.Traced, len(list))}
	for i, t := range list {
		request.Reports[i] = &controlpb.Traced{Trace: []byte(t.Trace), Turn: controlpb.Turn(t.Turn), Bytes: t.Bytes,
			Code: uint32(t.Code), Cause: []byte(t.Cause[:min(len(t.Cause), causeMax)])}
	}
	_, err := call(ctx, c, "control.report", peer,
		func(ctx context.Context, k *conn) (*controlpb.ReportReply, error) {
			reply, err := k.stub.Report(ctx, request)
			return reply, notImplemented("control.report", peer, err)
		})
	return err
}

func (s *service) Report(ctx context.Context, request *controlpb.ReportRequest) (*controlpb.ReportReply, error) {
	from, err := s.caller(ctx, request.GetCall())
	if err != nil {
		return nil, err
	}
	list, malformed := fromReports(request.GetReports())
	if malformed != nil {
		s.server.options.Refused(transport.RefusedMalformed, hostOf(ctx), malformed)
		return nil, malformed
	}
	s.handler.Reported(from, list)
	return &controlpb.ReportReply{}, nil
}

// fromReports checks the reports of a peer, and makes their texts fit to be seen.
func fromReports(list []*controlpb.Traced) ([]Traced, *errs.Error) {
	if len(list) > ReportsMax {
		return nil, protocolError("the peer sent %d reports in one call, more than %d", len(list), ReportsMax)
	}
	out := make([]Traced, len(list))
	for i, t := range list {
		switch {
		case len(t.GetTrace()) == 0 || len(t.GetTrace()) > TraceMax:
			return nil, protocolError("the peer reports a trace of %d bytes", len(t.GetTrace()))
		case t.GetTurn() < controlpb.Turn(TurnCompleted) || t.GetTurn() > controlpb.Turn(TurnFailover):
			return nil, protocolError("the peer reports a turn %d, which is none", t.GetTurn())
		case t.GetCode() > 1<<16-1:
			return nil, protocolError("the peer reports an error %d, which is none", t.GetCode())
		}
		out[i] = Traced{Trace: errs.Printable(string(t.GetTrace()), TraceMax), Turn: Turn(t.GetTurn()),
			Bytes: t.GetBytes(), Code: errs.Code(t.GetCode()), Cause: errs.Printable(string(t.GetCause()), causeMax)}
	}
	return out, nil
}
