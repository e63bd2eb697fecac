package control

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/transport"
)

var rewrite = flag.Bool("rewrite", false, "write the recorded messages anew: only before a version is released")

// recorded are all messages of version 1 as its engines send them, by the name of their file in testdata/v1.
func recorded() map[string]proto.Message {
	from := &controlpb.Identity{Address: "10.0.0.5:41233", Name: "prefill-0", MachineId: "machine", Network: "network"}
	call := &controlpb.Call{From: from}
	return map[string]proto.Message{
		"hello":           &controlpb.HelloRequest{Version: "1.0", From: from, Capabilities: []string{"a"}},
		"hello-reply":     &controlpb.HelloReply{Version: "1.0", Self: from, Addresses: []string{"10.0.0.5:41233"}},
		"describe":        &controlpb.DescribeRequest{Call: call, KnownEpoch: 7},
		"describe-reply":  &controlpb.DescribeReply{Description: []byte("description"), Transports: versions1()},
		"describe-known":  &controlpb.DescribeReply{},
		"describe-update": &controlpb.DescribeRequest{Call: call, KnownEpoch: 7, Update: true},
		"describe-changes": &controlpb.DescribeReply{Description: []byte("description"), Since: 7,
			Closed: []uint64{1<<32 | 3}},
		"transport":       &controlpb.TransportRequest{Call: call, Transport: "tcp", Message: []byte{1, 2}},
		"transport-reply": &controlpb.TransportReply{Message: []byte{1, 3}},
		"notify":          &controlpb.NotifyRequest{Call: call, Sequence: 9, Message: []byte("note")},
		"notify-reply":    &controlpb.NotifyReply{},
		"report": &controlpb.ReportRequest{Call: call, Reports: []*controlpb.Traced{{Trace: []byte("req-17"),
			Turn: controlpb.Turn_TURN_FAILED, Bytes: 4096, Code: 303, Cause: []byte("no")}}},
		"report-reply":     &controlpb.ReportReply{},
		"probe":            &controlpb.ProbeRequest{Call: call},
		"probe-reply":      &controlpb.ProbeReply{},
		"fault":            &controlpb.Fault{Code: 309, Scope: 2, Side: 1, Op: "serve", Cause: "no", Hint: "try again"},
		"fault-collateral": &controlpb.Fault{Code: 1, Collateral: true, Peer: "p", Transport: "tcp", Rail: "a-b"},
	}
}

func versions1() []*controlpb.Transport {
	return []*controlpb.Transport{{Name: "tcp", First: 1, Last: 2}, {Name: "shm", First: 1, Last: 1}}
}

// An engine of this version understands the released engines of version 1, and those of the next minor version, which
// add fields. Its own messages are those of version 1, byte by byte.
func TestRecordedMessagesAreStillUnderstood(t *testing.T) {
	list := recorded()
	for name, want := range list {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", "v1", name+".hex")
			sent, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
			require.NoError(t, err)
			if *rewrite {
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, []byte(hex.EncodeToString(sent)+"\n"), 0o644))
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			old, err := hex.DecodeString(strings.TrimSpace(string(text)))
			require.NoError(t, err)
			require.Equal(t, old, sent, "a field of version 1 has another number or form")

			next := protowire.AppendTag(old, 1000, protowire.BytesType)
			next = protowire.AppendBytes(next, []byte("a field of the next version"))
			for _, bytes := range [][]byte{old, next} {
				got := proto.Clone(want)
				proto.Reset(got)
				require.NoError(t, proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(bytes, got))
				require.True(t, proto.Equal(want, got), "%v", got)
			}
		})
	}
	files, err := os.ReadDir(filepath.Join("testdata", "v1"))
	require.NoError(t, err)
	require.Len(t, files, len(list), "each recorded message is read")
}

// A peer's list of transports is bounded, and odd numbers are no version of ours.
func TestVersionsOfTransportsTravelWhole(t *testing.T) {
	open := map[string]transport.Versions{"tcp": {First: 1, Last: 2}, "shm": {First: 1, Last: 1}, "buf-io": {}}
	require.Equal(t, open, fromTransports(toTransports(open)))
	require.NotNil(t, fromTransports(nil), "a peer without any says so")
	require.Equal(t, map[string]transport.Versions{"x": {First: 65535, Last: 65535}},
		fromTransports([]*controlpb.Transport{{Name: "x", First: 1 << 31, Last: 1<<32 - 1}}))
	require.LessOrEqual(t, len(fromTransports(make([]*controlpb.Transport, 10_000))), listPeerMax)
}
