package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// patience is far beyond the time of any step here on a busy machine.
const patience = 20 * time.Second

// node is the control plane of one engine. Handler methods call the functions that a test sets.
type node struct {
	server  *Server
	client  *Client
	self    transport.Peer
	options Options

	describe func(context.Context, transport.Peer, uint64, bool) (*Offer, error)
	serve    func(context.Context, transport.Peer, string, []byte) ([]byte, error)
	notified func(context.Context, transport.Peer, uint64, []byte) error
	changed  func(transport.Peer, uint64)
	reported func(transport.Peer, []Traced)
}

func (n *node) Describe(ctx context.Context, from transport.Peer, known uint64, update bool) (*Offer, error) {
	return n.describe(ctx, from, known, update)
}

func (n *node) Serve(ctx context.Context, from transport.Peer, name string, message []byte) ([]byte, error) {
	return n.serve(ctx, from, name, message)
}

func (n *node) Notified(ctx context.Context, from transport.Peer, seq uint64, message []byte) error {
	return n.notified(ctx, from, seq, message)
}

func (n *node) Changed(from transport.Peer, epoch uint64)   { n.changed(from, epoch) }
func (n *node) Reported(from transport.Peer, list []Traced) { n.reported(from, list) }

// newCredentials are those of a new engine of mode local, unless settings say otherwise.
func newCredentials(t testing.TB, settings ...security.Settings) *security.Credentials {
	made, err := security.Open(append(settings, security.Settings{})[0])
	require.NoError(t, err)
	return made
}

// start opens a node that ends, and is checked for leaks, with the test.
func start(t testing.TB, listen string, change ...func(*Options)) *node {
	t.Helper()
	n := &node{self: transport.Peer{Name: "node", MachineID: "here", Identity: fmt.Sprint("uid:", os.Getuid())}}
	n.serve = func(_ context.Context, from transport.Peer, name string, message []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%s %s %v", name, message, from.ID), nil
	}
	n.options = Options{Self: func() transport.Peer { return n.self }, Credentials: newCredentials(t),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, each := range change {
		each(&n.options)
	}
	server, err := Listen([]string{listen}, n.options)
	require.NoError(t, err)
	n.server = server
	n.self.Address, n.self.ID = server.Addresses()[0], n.options.Credentials.ID()
	server.Start(n)
	n.client = NewClient(n.options)
	t.Cleanup(n.close)
	return n
}

func (n *node) close() {
	n.client.Close()
	if err := n.server.Close(context.Background()); err != nil {
		panic(err)
	}
}

// checkLeaks is called first, so that it looks after everything else has ended.
func checkLeaks(t testing.TB) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func open(t testing.TB, from, to *node) transport.Peer {
	t.Helper()
	peer, err := from.client.Open(within(t), to.self.Address)
	require.NoError(t, err)
	return peer
}

func TestHelloTellsWhoIsThere(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	b := start(t, "[::1]:0", func(o *Options) { o.Version = "1.9" })
	b.self.Name = "decode-0"
	greeting, err := a.client.Hello(within(t), b.self.Address)
	require.NoError(t, err)
	require.Equal(t, Greeting{Peer: b.self, Proof: security.Proof{ID: b.self.ID, Identity: b.self.Identity}}, greeting,
		"a peer of the same major version is welcome")
	require.False(t, open(t, a, a).Self, "no message says that")
}

func TestDescribeComesOnceForEachEpoch(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	epoch := uint64(1)
	b.describe = func(_ context.Context, from transport.Peer, known uint64, update bool) (*Offer, error) {
		from.Host = ""
		require.Equal(t, a.self, from)
		require.True(t, update)
		if known == epoch {
			return nil, nil
		}
		d := &segment.Description{Address: b.self.Address, ID: b.self.ID, Epoch: epoch,
			Regions: []segment.Region{
				{ID: 7, Name: "kv", Addr: 4096, Size: 64, Permission: mem.GlobalReadWrite,
					Descriptors: map[string]transport.Descriptor{"tcp": {1, 2}}}}}
		require.NoError(t, d.Seal())
		return &Offer{Encoded: segment.Encode(d, true)}, nil
	}
	peer := open(t, a, b)
	d, err := a.client.Describe(within(t), peer, nil)
	require.NoError(t, err)
	require.Equal(t, transport.Descriptor{1, 2}, d.Find("kv").Descriptors["tcp"])
	same, err := a.client.Describe(within(t), peer, d)
	require.NoError(t, err)
	require.Nil(t, same)
	epoch++
	d, err = a.client.Describe(within(t), peer, d)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Epoch)
}

// A peer describes itself: keys and addresses of another engine would go by its name.
func TestADescriptionOfAnotherEngineIsRefused(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	for id, code := range map[transport.ID]errs.Code{b.self.ID: errs.OK, a.self.ID: errs.Protocol, {}: errs.Protocol} {
		b.describe = func(context.Context, transport.Peer, uint64, bool) (*Offer, error) {
			d := &segment.Description{ID: id, Epoch: 1}
			require.NoError(t, d.Seal())
			return &Offer{Encoded: segment.Encode(d, true)}, nil
		}
		_, err := a.client.Describe(within(t), peer, nil)
		require.Equal(t, code, errs.CodeOf(err), "%v", err)
	}
}

// A peer may tell changes alone. They are added to the description that we know, and to no other one.
func TestChangesAreAddedToTheKnownDescription(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	region := func(id mem.RegionID, name string, size uint64) segment.Region {
		return segment.Region{ID: id, Name: name, Addr: uint64(id) * 4096, Size: size,
			Permission: mem.GlobalReadWrite}
	}
	var offer *segment.Description
	var since uint64
	b.describe = func(_ context.Context, _ transport.Peer, known uint64, update bool) (*Offer, error) {
		require.NoError(t, offer.Seal())
		made := &Offer{Encoded: segment.Encode(offer, true)}
		if known > 0 {
			made.Since, made.Closed = since, []mem.RegionID{2}
		}
		return made, nil
	}
	peer := open(t, a, b)
	offer = &segment.Description{ID: b.self.ID, Epoch: 5, Regions: []segment.Region{region(1, "a", 64),
		region(2, "b", 64), region(3, "c", 64)}}
	known, err := a.client.Describe(within(t), peer, nil)
	require.NoError(t, err)
	offer = &segment.Description{ID: b.self.ID, Epoch: 9, Regions: []segment.Region{region(3, "c", 128),
		region(4, "b", 64)}}
	since = 5
	fresh, err := a.client.Describe(within(t), peer, known)
	require.NoError(t, err)
	require.EqualValues(t, 9, fresh.Epoch)
	require.Len(t, fresh.Regions, 3)
	require.EqualValues(t, 1, fresh.Find("a").ID)
	require.EqualValues(t, 4, fresh.Find("b").ID, "the name goes on with another region")
	require.EqualValues(t, 128, fresh.Find("c").Size)
	require.Len(t, known.Regions, 3, "the old one is as it was")
	require.EqualValues(t, 64, known.Find("c").Size)

	since = 4
	_, err = a.client.Describe(within(t), peer, known)
	require.ErrorContains(t, err, "another epoch")
	since, offer = 5, &segment.Description{ID: b.self.ID, Epoch: 9, Regions: []segment.Region{region(9, "a", 64)}}
	_, err = a.client.Describe(within(t), peer, known)
	require.ErrorContains(t, err, `two regions are named "a"`)
}

func TestConcurrentCallsShareOneConnection(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := transport.Peer{Address: b.self.Address, ID: b.self.ID}
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			for j := range 20 {
				message := fmt.Sprintf("%d/%d", i, j)
				answer, err := a.client.Call(context.Background(), peer, "tcp", []byte(message))
				if err != nil || string(answer) != fmt.Sprintf("tcp %s %v", message, a.self.ID) {
					t.Errorf("answer %q, error %v", answer, err)
				}
			}
		})
	}
	group.Wait()
	require.Equal(t, 1, b.server.guests.count())
}

func TestNotificationsCarrySenderAndSequence(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	var got []string
	b.notified = func(_ context.Context, from transport.Peer, seq uint64, message []byte) error {
		got = append(got, fmt.Sprintf("%v %d %s", from.ID, seq, message))
		if len(got) == 2 {
			return errs.New(errs.TooManyRequests, "notify", "the queue is full")
		}
		return nil
	}
	peer := open(t, a, b)
	require.NoError(t, a.client.Notify(within(t), peer, 1, []byte("one")))
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(a.client.Notify(within(t), peer, 2, []byte("two"))))
	require.NoError(t, a.client.Notify(within(t), peer, 2, []byte("two")))
	id := a.self.ID
	require.Equal(t, []string{fmt.Sprintf("%v 1 one", id), fmt.Sprintf("%v 2 two", id), fmt.Sprintf("%v 2 two", id)},
		got)
}

func TestProbeIsAnswered(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	for _, peer := range []transport.Peer{{Address: b.self.Address}, open(t, a, b)} {
		require.NoError(t, a.client.Probe(within(t), peer))
	}
}

func TestErrorsOfTheHandlerCrossWhole(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	b.serve = func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
		return nil, fmt.Errorf("outer: %w", &errs.Error{Code: errs.StaleGeneration, Scope: errs.ScopeRail,
			Side: errs.SideLocal, Collateral: true,
			Op: "tcp.hello", Transport: "tcp", Rail: "1-2", Cause: "größer \xff", Hint: "wait"})
	}
	_, err := a.client.Call(within(t), peer, "tcp", nil)
	require.Equal(t, &errs.Error{Code: errs.StaleGeneration, Scope: errs.ScopeRail, Side: errs.SideRemote,
		Collateral: true,
		Op:         "tcp.hello", Peer: peer.Address, Transport: "tcp", Rail: "1-2", Cause: "größer \uFFFD",
		Hint: "wait"}, err)

	b.serve = func(context.Context, transport.Peer, string, []byte) ([]byte, error) { return nil, errors.New("plain") }
	_, err = a.client.Call(within(t), peer, "tcp", nil)
	require.Equal(t, errs.Internal, errs.CodeOf(err))
	require.ErrorContains(t, err, "plain")
}

func TestPanicOfAHandlerIsAnErrorOfOneCall(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	b.serve = func(context.Context, transport.Peer, string, []byte) ([]byte, error) { panic("oh dear") }
	_, err := a.client.Call(within(t), peer, "tcp", nil)
	require.Equal(t, errs.Internal, errs.CodeOf(err))
	require.NotContains(t, err.Error(), "oh dear", "what a panic says may be anything in memory")
	require.True(t, b.self == open(t, a, b))
}

func BenchmarkCall(b *testing.B) {
	x, y := start(b, "127.0.0.1:0"), start(b, "127.0.0.1:0")
	peer := open(b, x, y)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.client.Call(context.Background(), peer, "tcp", []byte("hello")); err != nil {
			b.Fatal(err)
		}
	}
}
