// Package security attacks engines from outside, each test one attack: over real sockets, by a peer that follows the
// protocol and lies in it. DESIGN's promise is that memory is reached by the peers and in the ways that its owner
// allows.
package security

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/tcp"
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(Resident), Intruder{}) {
		return
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait; a longer one hangs.
const patience = 20 * time.Second

// memory maps zeroed bytes outside of Go's heap.
func memory(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// open opens an engine as a user does.
func open(settings map[string]any) (*engine.Engine, error) {
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings)
	if err != nil {
		return nil, err
	}
	return engine.Open(context.Background(), engine.Options{Config: c, Transports: engine.Plugs(all.Factories()...)})
}

// victim is an engine with the default settings, or with those given.
func victim(t *testing.T, settings ...map[string]any) *engine.Engine {
	t.Helper()
	e, err := open(append(settings, nil)[0])
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true))
		require.NoError(t, e.Forget())
	})
	return e
}

// rogue is a tcp transport without an engine: a test chooses its words about itself.
type rogue struct {
	t         *testing.T
	claims    transport.Peer
	client    *control.Client
	transport transport.Transport
	key       transport.LocalKey
	through   func(answer []byte) []byte // changes answers over the control plane; nil: leaves them

	rails chan transport.RailInfo
	down  chan *errs.Error
	ends  chan transport.Completion
}

// newRogue opens one that claims an identity, with own as its memory.
func newRogue(t *testing.T, claims transport.Peer, own []byte) *rogue {
	t.Helper()
	return newRogueOf(t, claims, own, security.Settings{})
}

// newRogueOf opens one with credentials.
func newRogueOf(t *testing.T, claims transport.Peer, own []byte, settings security.Settings) *rogue {
	t.Helper()
	r := &rogue{t: t, claims: claims, rails: make(chan transport.RailInfo, 64), down: make(chan *errs.Error, 64),
		ends: make(chan transport.Completion, 64)}
	credentials, err := security.Open(settings)
	require.NoError(t, err)
	if r.claims.ID.IsZero() {
		r.claims.ID = credentials.ID()
	}
	r.client = control.NewClient(control.Options{Self: r.Self, Credentials: credentials, Log: r.Log()})
	r.transport, err = tcp.Factory{}.Open(context.Background(), nil, r, r)
	require.NoError(t, err)
	r.key, _, err = r.transport.Register(context.Background(),
		mem.Region{ID: 1, Addr: mem.AddressOf(own), Size: uint64(len(own)),
			Kind: mem.Host, Location: "cpu:0", Fd: -1})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.transport.Close(context.Background()))
		r.client.Close()
	})
	return r
}

func (r *rogue) Self() transport.Peer { return r.claims }

func (r *rogue) Describe(transport.LocalKey, transport.Descriptor) {}
func (r *rogue) Refused(transport.Refusal, string, error)          {}

func (r *rogue) Log() *slog.Logger {
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func (r *rogue) Addresses() []netip.Addr { return nil }

func (r *rogue) Call(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
	answer, err := r.client.Call(ctx, to, tcp.Name, message)
	if r.through != nil {
		answer = r.through(answer)
	}
	return answer, err
}

func (r *rogue) Complete(list []transport.Completion) {
	for _, c := range list {
		r.ends <- c
	}
}

func (r *rogue) RailUp(info transport.RailInfo)                              { r.rails <- info }
func (r *rogue) LinkDown(_ transport.Link, e *errs.Error)                    { r.down <- e }
func (r *rogue) Ready(transport.Rail)                                        {}
func (r *rogue) Progress(transport.Rail)                                     {}
func (r *rogue) RailDown(transport.Rail, *errs.Error)                        {}
func (r *rogue) Fenced(transport.Link, transport.RemoteKey, transport.Epoch) {}
func (r *rogue) Notified(transport.Peer, []byte) bool                        { return true }
func (r *rogue) describe(e *engine.Engine) *segment.Description {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	credentials, err := security.Open(security.Settings{})
	require.NoError(r.t, err)
	stranger := control.NewClient(control.Options{Self: func() transport.Peer { return transport.Peer{} },
		Credentials: credentials, Log: r.Log()})
	defer stranger.Close()
	d, err := stranger.Describe(ctx, e.Self(), nil)
	require.NoError(r.t, err)
	return d
}

// attach greets the victim and returns a rail, or the reason why there is none.
func (r *rogue) attach(e *engine.Engine) (transport.Link, transport.Rail, *errs.Error) {
	r.t.Helper()
	link, err := r.transport.Attach(e.Self())
	require.NoError(r.t, err)
	for late := time.After(patience); ; {
		select {
		case up := <-r.rails:
			return link, up.Rail, nil
		case cause := <-r.down:
			if cause.Code != errs.Timeout { // that of a busy machine: the link goes on asking
				return link, transport.Rail{}, cause
			}
		case <-late:
			r.t.Fatal("neither a rail nor a refusal")
		}
	}
}

// move carries out one slice between the rogue's memory and a key of the victim, and returns its end.
func (r *rogue) move(op transport.Op, rail transport.Rail, key transport.RemoteKey, own []byte) *errs.Error {
	r.t.Helper()
	return r.moveAt(op, rail, key, 0, own)
}

// moveAt is move at an offset of the victim's region.
func (r *rogue) moveAt(op transport.Op, rail transport.Rail, key transport.RemoteKey, offset uint64,
	own []byte) *errs.Error {
	r.t.Helper()
	s := &transport.Slice{Op: op, Rail: rail, LocalKey: r.key, RemoteKey: key, Local: mem.AddressOf(own),
		Remote: offset, Length: uint64(len(own)), Id: 1}
	require.Equal(r.t, 1, r.transport.Submit([]*transport.Slice{s}))
	select {
	case end := <-r.ends:
		return end.Err
	case <-time.After(patience):
		r.t.Fatal("the slice did not end")
		return nil
	}
}
