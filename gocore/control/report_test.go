package control

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestReportsArriveAsTheyWereSent(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	sent := []Traced{{Trace: "req-17", Turn: TurnCompleted, Bytes: 1 << 40},
		{Trace: "séance", Turn: TurnFailover, Code: errs.Timeout, Cause: "no answer"}}
	var heard []Traced
	b.reported = func(from transport.Peer, list []Traced) {
		require.Equal(t, a.self.ID, from.ID)
		heard = list
	}
	require.NoError(t, a.client.Report(within(t), peer, sent))
	require.Equal(t, sent, heard)
}

// An engine of before this call answers as gRPC does, and the caller can tell.
func TestAnOlderPeerDoesNotKnowReports(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	options := a.options
	options.Credentials = newCredentials(t)
	server, err := Listen([]string{"127.0.0.1:0"}, options)
	require.NoError(t, err)
	older := controlpb.Control_ServiceDesc
	older.Methods = slices.DeleteFunc(slices.Clone(older.Methods), func(m grpc.MethodDesc) bool {
		return m.MethodName == "Report"
	})
	server.grpc.RegisterService(&older, &service{server: server, handler: a})
	server.started = true
	server.serving.Go(func() { _ = server.grpc.Serve(door{server.listeners[0], server.guests}) })
	defer server.Close(within(t))
	peer, err := a.client.Open(within(t), server.Addresses()[0])
	require.NoError(t, err)
	err = a.client.Report(within(t), peer, []Traced{{Trace: "req-17", Turn: TurnCompleted}})
	require.Equal(t, errs.NotImplemented, errs.CodeOf(err), "%v", err)
}
