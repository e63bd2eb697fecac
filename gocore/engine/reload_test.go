//go:build cgo

package engine

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
)

// suspects are the visitors of an engine, as if none of them was admitted any more.
func suspects(e *Engine) (list []suspect) {
	for _, v := range e.visitors.list() {
		list = append(list, suspect{visitor: v, reason: errors.New("it is not listed")})
	}
	return list
}

// silent enters visitors that listen where the kernel accepts, and nobody answers.
func silent(t *testing.T, e *Engine, n int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	for n := range n {
		p := caller(n, "dns:a")
		p.Address = listener.Addr().String()
		e.visitors.note(p, security.Proof{}, time.Now())
	}
}

// Many peers say nothing when they are asked for a newer proof, and an engine that works has no turn. All of them lose
// their access behind the limit. Those that had no turn are not kept out: the engine that works comes back.
func TestAPeerWithoutATurnComesBack(t *testing.T) {
	owner, other := without(t, "shm"), without(t, "shm")
	pageOf(t, owner, "kv")
	_, write := pageWriter(t, other, owner, "kv")
	require.Equal(t, dispatch.Completed, write())
	id := other.credentials.ID()
	owner.visitors.ask(id, time.Now()) // it was asked last, so it comes behind the others
	silent(t, owner, 10*renewalAsks)
	owner.renewOrDismiss(context.Background(), suspects(owner), 100*time.Millisecond)
	require.Eventually(t, func() bool { return !owner.openVisitors()[id] }, time.Minute, time.Millisecond)
	for _, v := range owner.visitors.list() {
		require.False(t, owner.credentials.Barred(v.peer.ID), "one that is kept out is no visitor")
	}
	require.Eventually(t, func() bool { return write() != dispatch.Completed }, time.Minute, time.Millisecond,
		"the end of its lanes is heard")
	require.NotNil(t, owner.visitors.use(id, time.Now()))
	_, again := pageWriter(t, other, owner, "kv")
	require.Equal(t, dispatch.Completed, again())
}

// lateTimer is a context at the end of its time. Its timer has not run yet.
type lateTimer struct{ context.Context }

func (lateTimer) Deadline() (time.Time, bool) { return time.Now(), true }

// On a busy machine a call ends by its own timer before its context does. A peer that was asked then has had no time.
func TestALimitIsOverBeforeItsTimerHasRun(t *testing.T) {
	require.NoError(t, overdue(context.Background()))
	require.ErrorIs(t, overdue(lateTimer{context.Background()}), context.DeadlineExceeded)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, overdue(ended), context.Canceled)
}

// A peer that had its time and said nothing is kept out, and so is one that cannot be reached at all.
func TestAPeerThatHadItsTimeIsKeptOut(t *testing.T) {
	owner := without(t, "shm")
	silent(t, owner, 1)
	gone := caller(2, "dns:a")
	gone.Address = "127.0.0.1:1"
	owner.visitors.note(gone, security.Proof{}, time.Now())
	require.Eventually(t, func() bool { // a machine with too much to do gives it no time, and the next look does
		owner.renewOrDismiss(context.Background(), suspects(owner), unlistedAsk)
		return owner.credentials.Barred(caller(0, "").ID) && owner.credentials.Barred(gone.ID)
	}, time.Minute, time.Millisecond)
	require.Empty(t, owner.visitors.list())
}

// A peer that has shown another proof since the question is not dismissed.
func TestAPeerThatHasRenewedMeanwhileKeepsItsLanes(t *testing.T) {
	owner, other := without(t, "shm"), without(t, "shm")
	pageOf(t, owner, "kv")
	_, write := pageWriter(t, other, owner, "kv")
	require.Equal(t, dispatch.Completed, write())
	lost := suspects(owner)
	owner.shown(lost[0].peer, security.Proof{})
	lost[0].kept = true
	owner.dismissAll(context.Background(), lost)
	require.Equal(t, dispatch.Completed, write())
}

// meeting is a transport whose revocations wait until some are there.
type meeting struct {
	transport.Transport
	there sync.WaitGroup
	alone atomic.Bool // some did not come
}

func (m *meeting) Revoke(ctx context.Context, key transport.LocalKey, from *transport.Peer, e transport.Epoch) error {
	if from == nil {
		return m.Transport.Revoke(ctx, key, from, e)
	}
	m.there.Done()
	met := make(chan struct{})
	go func() { defer close(met); m.there.Wait() }()
	select {
	case <-met:
		return nil
	case <-time.After(time.Minute): // longer than any context
		m.alone.Store(true)
		return ctx.Err()
	}
}

// onTCP puts a transport of a test in the place of an engine's, which looks at nothing by itself any more.
func onTCP(t *testing.T, e *Engine, wrap func(transport.Transport) transport.Transport) {
	t.Helper()
	e.routines.close()
	e.routines.closed = false // for calls of the test
	e.routines.init()
	for _, p := range e.ports {
		if p.transport != nil && p.name == "tcp" {
			was := p.transport
			p.transport = wrap(was)
			return
		}
	}
	require.Fail(t, "no tcp")
}

// A revocation that waits, as for a process that was stopped in the middle of a copy, holds up no other one.
func TestARevocationThatWaitsHoldsUpNoOther(t *testing.T) {
	const peers = 4*renewalAsks + 1
	owner := without(t, "shm")
	pageOf(t, owner, "kv")
	m := &meeting{}
	m.there.Add(peers)
	onTCP(t, owner, func(was transport.Transport) transport.Transport { m.Transport = was; return m })
	silent(t, owner, peers)
	list := suspects(owner)
	for i := range list {
		list[i].kept = true
	}
	owner.dismissAll(context.Background(), list)
	require.False(t, m.alone.Load())
}

// looking is a transport with a hook in the first look at its visitors.
type looking struct {
	transport.Transport
	looked atomic.Bool
	hook   func()
}

func (l *looking) Visitors() []transport.ID {
	t, _ := transport.Find[transport.Visited](l.Transport)
	list := t.Visitors()
	if !l.looked.Swap(true) {
		l.hook()
	}
	return list
}

// A reload that fails is a warning and an event, once. It is one again behind a look at which the files were fine, also
// where these were the ones of before.
func TestAReloadThatFailsIsAWarningEachTimeThatItBegins(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	f := securitytest.NewFiles(t)
	e := certifiedBy(t, ca, "owner", f)
	e.Logs(logsMax)
	failed := e.lookAtFiles(t.Context(), "")
	require.Empty(t, failed)
	require.Empty(t, e.Logs(logsMax), "nothing was replaced")
	warned := func() int {
		list := e.Logs(logsMax)
		for _, r := range list {
			require.Equal(t, slog.LevelWarn, r.Level, r.Message)
			require.Contains(t, r.Message, e.credentials.Until().UTC().Format(time.RFC3339))
			require.Contains(t, r.Attrs["cause"], "security/cert")
		}
		return len(list)
	}
	for range 2 {
		require.NoError(t, os.Rename(f.Certificate, f.Certificate+".away"))
		for look, want := range []int{1, 0, 0} {
			failed = e.lookAtFiles(t.Context(), failed)
			require.NotEmpty(t, failed)
			require.Equal(t, want, warned(), "look %d", look)
		}
		require.NoError(t, os.Rename(f.Certificate+".away", f.Certificate))
		failed = e.lookAtFiles(t.Context(), failed)
		require.Empty(t, failed)
	}
}

// certified opens an engine of mode mtls that admits all certificates of an authority.
func certified(t *testing.T, ca *securitytest.Authority, identity string) *Engine {
	t.Helper()
	return certifiedBy(t, ca, identity, securitytest.NewFiles(t))
}

func certifiedBy(t *testing.T, ca *securitytest.Authority, identity string, f securitytest.Files) *Engine {
	t.Helper()
	f.Write(t, ca.Issue(t, nil, identity), ca)
	settings := f.Settings("*")
	settings["transports/shm/enable"], settings["security/reload_interval"] = false, 0
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings)
	require.NoError(t, err)
	e, err := Open(context.Background(), Options{Config: c, Transports: Plugs(all.Factories()...)})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true))
		require.NoError(t, e.Forget())
	})
	return e
}

// A peer with nothing open shows its new certificate and opens lanes between the two looks of recheck. It stays known,
// so that a later one finds it.
func TestAPeerThatRenewsDuringALookStaysKnown(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner, other := certified(t, ca, "owner"), certified(t, ca, "other")
	pageOf(t, owner, "kv")
	is := other.Self()
	var write func() dispatch.State
	renew := func() { _, write = pageWriter(t, other, owner, "kv"); require.Equal(t, dispatch.Completed, write()) }
	onTCP(t, owner, func(was transport.Transport) transport.Transport { return &looking{Transport: was, hook: renew} })
	owner.visitors.note(is, security.Proof{}, time.Now()) // an old proof
	owner.recheck(context.Background(), time.Now())
	require.NotNil(t, owner.visitors.use(is.ID, time.Now()))
	require.Equal(t, dispatch.Completed, write())
}

// One look at the peers hangs. A list that comes meanwhile takes the access of another peer, and its caller waits no
// longer than it likes.
func TestALookHoldsUpNoOther(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner, other := certified(t, ca, "owner"), certified(t, ca, "other")
	pageOf(t, owner, "kv")
	_, write := pageWriter(t, other, owner, "kv")
	require.Equal(t, dispatch.Completed, write())
	goOn := make(chan struct{})
	defer close(goOn)
	ctx, cancel := context.WithCancel(context.Background())
	hook := func() { cancel(); <-goOn }
	onTCP(t, owner, func(was transport.Transport) transport.Transport { return &looking{Transport: was, hook: hook} })
	owner.visitors.note(caller(0, "dns:old"), security.Proof{}, time.Now())
	changed, err := owner.ReloadSecurity(ctx, []string{"dns:other"})
	require.NoError(t, err)
	require.True(t, changed)
	_, err = owner.ReloadSecurity(context.Background(), []string{"dns:nobody"})
	require.NoError(t, err)
	require.NotEqual(t, dispatch.Completed, write())
}

// A caller that waits no longer leaves a look at the peers behind. It ends with the engine.
func TestALookThatItsCallerLeftEndsWithTheEngine(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := certified(t, ca, "owner")
	goOn, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	hook := func() { cancel(); <-goOn; close(ended) }
	onTCP(t, owner, func(was transport.Transport) transport.Transport { return &looking{Transport: was, hook: hook} })
	owner.visitors.note(caller(0, "dns:old"), security.Proof{}, time.Now())
	changed, err := owner.ReloadSecurity(ctx, []string{"dns:other"})
	require.NoError(t, err)
	require.True(t, changed)
	go func() { <-owner.routines.ctx.Done(); close(goOn) }() // the last steps of Close have begun
	require.Empty(t, owner.Close(patience, true))
	select {
	case <-ended:
	default:
		require.Fail(t, "the look goes on in a closed engine")
	}
}

// stuck is a transport where revocations from a peer alone take as long as they may.
type stuck struct{ looking }

func (s *stuck) Revoke(ctx context.Context, key transport.LocalKey, from *transport.Peer, e transport.Epoch) error {
	if from != nil && strings.Contains(from.Identity, "new") {
		<-ctx.Done()
	}
	return s.Transport.Revoke(ctx, key, from, e)
}

// A peer is asked, and shows another identity. Its bytes under way hold up the end of no other peer.
func TestANewIdentityHoldsUpNoEndOfAccess(t *testing.T) {
	ca, files := securitytest.NewAuthority(t, nil), securitytest.NewFiles(t)
	owner, renamed, other := certified(t, ca, "owner"), certifiedBy(t, ca, "old", files), certified(t, ca, "other")
	onTCP(t, owner, func(was transport.Transport) transport.Transport {
		return &stuck{looking{Transport: was, hook: func() {}}}
	})
	page := mapped(t, pageBytes)
	_, err := owner.Register(Memory{Addr: mem.AddressOf(page), Size: pageBytes, Name: "theirs", Location: "cpu:0",
		Permission: mem.GlobalReadWrite, Peers: []string{"dns:old"}})
	require.NoError(t, err)
	pageOf(t, owner, "kv")
	for _, e := range []*Engine{renamed, other} {
		_, write := pageWriter(t, e, owner, "kv")
		require.Equal(t, dispatch.Completed, write())
	}
	files.Write(t, ca.Issue(t, nil, "new"), ca)
	_, err = renamed.credentials.Reload(nil)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := owner.ReloadSecurity(context.Background(), []string{"dns:new"})
		ended <- err
	}()
	require.Eventually(t, func() bool { return owner.credentials.Barred(other.credentials.ID()) }, time.Minute,
		time.Millisecond)
	require.Empty(t, ended, "the other one has not let go yet")
	require.NoError(t, <-ended)
}
