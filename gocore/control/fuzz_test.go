package control

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// FuzzMessages gives the server messages as they come out of a stranger's TLS connection, to a method of its choice.
// The caller stays the one that the handshake has proved, texts of the caller are bounded and fit to be seen, and every
// refusal is an error of ours. There is no interceptor that would catch a panic.
func FuzzMessages(f *testing.F) {
	shown := security.Proof{ID: transport.NumberedID(4711), Identity: "uid:1"}
	call := &controlpb.Call{From: &controlpb.Identity{Name: "\x1b[31mattacker", Address: "10.0.0.1:1"}}
	report := &controlpb.Traced{Trace: []byte("\x1b[31m"), Turn: 1, Bytes: 9}
	methods := controlpb.Control_ServiceDesc.Methods
	for _, seed := range []proto.Message{&controlpb.HelloRequest{},
		&controlpb.DescribeRequest{Call: call, KnownEpoch: 7},
		&controlpb.TransportRequest{Call: call, Transport: "sim", Message: []byte("hello")},
		&controlpb.NotifyRequest{Call: call, Sequence: 1, Message: []byte("note")}, &controlpb.ProbeRequest{Call: call},
		&controlpb.ReportRequest{Call: call, Reports: []*controlpb.Traced{report}}} {
		encoded, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		for method := range methods {
			f.Add(uint8(method), encoded)
		}
	}
	o := Options{Self: func() transport.Peer { return transport.Peer{} }, Credentials: newCredentials(f)}
	o = o.withDefaults()
	guests := newGuests(&o)
	f.Fuzz(func(t *testing.T, method uint8, message []byte) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		g := guests.admit(ours)
		defer g.Close()
		ctx := peer.NewContext(context.Background(),
			&peer.Peer{Addr: guestAddr{ours.RemoteAddr(), g}, AuthInfo: proof{shown}})
		checked := &node{
			describe: func(_ context.Context, from transport.Peer, _ uint64, _ bool) (*Offer, error) {
				proved(t, shown, from)
				return &Offer{Encoded: []byte("description")}, nil
			},
			serve: func(_ context.Context, from transport.Peer, name string, message []byte) ([]byte, error) {
				proved(t, shown, from)
				return message, nil
			},
			notified: func(_ context.Context, from transport.Peer, _ uint64, _ []byte) error {
				proved(t, shown, from)
				return nil
			},
			changed: func(from transport.Peer, _ uint64) { proved(t, shown, from) },
			reported: func(from transport.Peer, list []Traced) {
				proved(t, shown, from)
				if len(list) > ReportsMax {
					t.Fatalf("%d reports at once", len(list))
				}
				for _, r := range list {
					fitToBeSeen(t, r.Trace, identityMax)
				}
			},
		}
		served := &service{server: &Server{options: o, guests: guests}, handler: checked}
		decode := func(into any) error { return proto.Unmarshal(message, into.(proto.Message)) }
		answer, err := methods[int(method)%len(methods)].Handler(served, ctx, decode, nil)
		if err == nil && answer == nil {
			t.Fatal("neither an answer nor an error")
		}
		if err != nil {
			fitToBeSeen(t, errs.From("control", err).Cause, 4<<10)
		}
	})
}

// proved fails unless a caller has the name that its handshake gave it, and words that are bounded and printable.
func proved(t *testing.T, shown security.Proof, from transport.Peer) {
	t.Helper()
	if from.ID != shown.ID || from.Identity != shown.Identity || from.Self {
		t.Fatalf("a message named its caller: %+v", from)
	}
	for _, text := range []string{from.Name, from.Address, from.MachineID} {
		fitToBeSeen(t, text, identityMax)
	}
}

func fitToBeSeen(t *testing.T, text string, most int) {
	t.Helper()
	if len(text) > most || strings.ContainsAny(text, "\x1b\r\n\x00") {
		t.Fatalf("%q is no text for a log", text)
	}
}
