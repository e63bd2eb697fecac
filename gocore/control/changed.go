package control

import (
	"context"

	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/transport"
)

// Changed says to a peer that our description has an epoch now. NotImplemented: the peer is older than this call.
func (c *Client) Changed(ctx context.Context, peer transport.Peer, epoch uint64) error {
	request := &controlpb.ChangedRequest{Call: c.header(), Epoch: epoch}
	_, err := call(ctx, c, "control.changed", peer,
		func(ctx context.Context, k *conn) (*controlpb.ChangedReply, error) {
			reply, err := k.stub.Changed(ctx, request)
			return reply, notImplemented("control.changed", peer, err)
		})
	return err
}

func (s *service) Changed(ctx context.Context, request *controlpb.ChangedRequest) (*controlpb.ChangedReply, error) {
	from, err := s.caller(ctx, request.GetCall())
	if err != nil {
		return nil, err
	}
	s.handler.Changed(from, request.GetEpoch())
	return &controlpb.ChangedReply{}, nil
}
