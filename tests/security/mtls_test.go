package security

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/transport"
)

// member is an engine of mode mtls with files of its own, over sockets alone.
type member struct {
	*engine.Engine
	files securitytest.Files
}

func newMember(t *testing.T, identity *securitytest.Authority, root *securitytest.Authority, more map[string]any,
	allow ...string) member {
	f := securitytest.NewFiles(t)
	f.Write(t, identity, root)
	settings := f.Settings(allow...)
	settings["transports/shm/enable"], settings["security/reload_interval"] = false, 0
	for key, value := range more {
		settings[key] = value
	}
	return member{victim(t, settings), f}
}

// offer registers memory of an engine for the peers of some identities, for all of them without any.
func offer(t *testing.T, e *engine.Engine, size int, name string, peers ...string) []byte {
	t.Helper()
	b := memory(t, size)
	m := engine.Memory{Addr: mem.AddressOf(b), Size: uint64(size), Name: name, Location: "cpu:0", Peers: peers}
	if name != "" {
		m.Permission = mem.GlobalReadWrite
	}
	_, err := e.Register(m)
	require.NoError(t, err)
	return b
}

// writer moves pages from one engine to another, each with bytes of its own.
type writer struct {
	from   *engine.Engine
	own    []byte
	at     engine.SegmentID
	region mem.RegionID // 0: that of the segment
	moves  atomic.Int64
}

const pageBytes = 64 << 10

func newWriter(t *testing.T, from, to *engine.Engine, name string) *writer {
	t.Helper()
	w := &writer{from: from, own: offer(t, from, pageBytes, "")}
	var err error
	w.at, err = from.OpenSegment(context.Background(), to.Address()+"/"+name)
	require.NoError(t, err)
	return w
}

// move carries out one transfer and returns its error.
func (w *writer) move(op transport.Op) error {
	id, err := w.from.Move(&engine.Request{Terms: engine.Terms{Op: op}, Source: mem.AddressOf(w.own), Length: pageBytes,
		Remote: engine.Remote{Segment: w.at, Region: w.region}})
	if err != nil {
		return err
	}
	defer func() { _ = w.from.FreeBatch(id) }()
	w.from.Wait(id, patience)
	sum, err := w.from.Summary(id)
	switch {
	case err != nil:
		return err
	case sum.State == dispatch.Completed:
		w.moves.Add(1)
		return nil
	case sum.Err != nil:
		return sum.Err
	}
	return fmt.Errorf("it ended as %v", sum.State)
}

// write writes a page of bytes that no other page has.
func (w *writer) write() error {
	mark := byte(w.moves.Load())
	for i := range w.own {
		w.own[i] = mark + byte(i*7)
	}
	return w.move(transport.Write)
}

// happened waits for an event of a kind.
func happened(t *testing.T, e *engine.Engine, kind event.Kind) event.Event {
	t.Helper()
	follower, err := e.Follow()
	require.NoError(t, err)
	defer e.Unfollow(follower)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		list, _, err := e.Events(follower, 100)
		require.NoError(t, err)
		for _, each := range list {
			if each.Kind == kind {
				return each
			}
		}
		_, err = e.EventsWait(follower, 100*time.Millisecond)
		require.NoError(t, err)
	}
	require.FailNow(t, "no event", kind.String())
	return event.Event{}
}

// Certificates, keys and the authority are replaced at both ends while pages move: no transfer fails, and both engines
// stay the ones that they were. The lanes keep their keys.
func TestFilesAreReplacedUnderRunningTransfers(t *testing.T) {
	for _, data := range protections {
		t.Run(data.String(), func(t *testing.T) { filesAreReplaced(t, map[string]any{"security/data": data.String()}) })
	}
}

func filesAreReplaced(t *testing.T, settings map[string]any) {
	old, next := securitytest.NewAuthority(t, nil), securitytest.NewAuthority(t, nil)
	a := newMember(t, old.Issue(t, nil, "spiffe://prod/prefill/0"), old, settings, "spiffe://prod/**")
	b := newMember(t, old.Issue(t, nil, "spiffe://prod/decode/0"), old, settings, "spiffe://prod/**")
	theirs := offer(t, b.Engine, pageBytes, "kv")
	w := newWriter(t, a.Engine, b.Engine, "kv")
	stop, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if err := w.write(); err != nil {
				failed <- err
				return
			}
		}
	}()
	reload := func() {
		for _, m := range []member{a, b} {
			changed, err := m.ReloadSecurity(context.Background(), nil)
			require.NoError(t, err)
			require.True(t, changed)
		}
		before := w.moves.Load()
		require.Eventually(t, func() bool { return w.moves.Load() >= before+20 }, patience, time.Millisecond)
	}
	sign := func(by *securitytest.Authority, roots ...*securitytest.Authority) {
		a.files.Write(t, by.Issue(t, nil, "spiffe://prod/prefill/0"), roots...)
		b.files.Write(t, by.Issue(t, nil, "spiffe://prod/decode/0"), roots...)
		reload()
	}
	sign(old, old, next) // believe both authorities,
	sign(next, old, next)
	sign(next, next) // and the new one alone
	close(stop)
	require.NoError(t, <-failed)
	require.NoError(t, w.write())
	require.Equal(t, w.own, theirs)
	require.Equal(t, "spiffe://prod/prefill/0", b.Peers()[0].Peer.Identity)
	// An engine of the old authority is a stranger now.
	late := newMember(t, old.Issue(t, nil, "spiffe://prod/prefill/1"), next, nil, "*")
	_, err := late.OpenSegment(context.Background(), b.Address())
	require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err))
}

// Files that do not fit together leave everything as it was, with the reason in the error and in an event.
func TestAReloadThatFailsChangesNothing(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	a := newMember(t, ca.Issue(t, nil, "a"), ca, nil, "*")
	b := newMember(t, ca.Issue(t, nil, "b"), ca, nil, "*")
	offer(t, b.Engine, pageBytes, "kv")
	w := newWriter(t, a.Engine, b.Engine, "kv")
	one, other := ca.Issue(t, nil, "b"), ca.Issue(t, nil, "b")
	b.files.Write(t, &securitytest.Authority{Certificate: one.Certificate, Key: other.Key}, ca)
	_, err := b.ReloadSecurity(context.Background(), nil)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	require.ErrorContains(t, err, "security/cert and security/key")
	require.ErrorContains(t, happened(t, b.Engine, event.SecurityReloaded).Err, "security/key")
	_, err = b.ReloadSecurity(context.Background(), []string{"prefill"})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	_, err = b.ReloadSecurity(context.Background(), []string{"dns:c"}) // which is fine, beside the files
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	b.files.Write(t, one, ca)
	changed, err := b.ReloadSecurity(context.Background(), nil)
	require.NoError(t, err)
	require.True(t, changed)
	require.NoError(t, w.write(), "the list that came with wrong files was taken")
	c := newMember(t, ca.Issue(t, nil, "c"), ca, nil, "*")
	_, err = c.OpenSegment(context.Background(), b.Address())
	require.NoError(t, err)
}

// mustFail waits until the writer's transfers end, and shows that none touches the memory afterwards.
func mustFail(t *testing.T, w *writer, theirs []byte) {
	t.Helper()
	err := w.write()
	require.Error(t, err)
	t.Log(err)
	before := append([]byte(nil), theirs...)
	require.Error(t, w.write())
	require.Equal(t, before, theirs)
	clear(w.own)
	require.Error(t, w.move(transport.Read))
	require.Equal(t, make([]byte, pageBytes), w.own)
}

// A certificate that ends takes the access of its engine along, and leaves that of one that was renewed in time.
func TestTheEndOfACertificateIsThatOfItsAccess(t *testing.T) {
	t.Parallel() // it waits for seconds
	ca := securitytest.NewAuthority(t, nil)
	brief := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(3 * time.Second) }
	soon := map[string]any{"security/renewal_grace": 1}
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, soon, "*")
	ends := newMember(t, ca.Issue(t, brief, "ends"), ca, nil, "*")
	renews := newMember(t, ca.Issue(t, brief, "renews"), ca, nil, "*")
	theirs := offer(t, owner.Engine, pageBytes, "kv")
	other := offer(t, owner.Engine, pageBytes, "other")
	one, two := newWriter(t, ends.Engine, owner.Engine, "kv"), newWriter(t, renews.Engine, owner.Engine, "other")
	require.NoError(t, one.write())
	require.NoError(t, two.write())
	renews.files.Write(t, ca.Issue(t, nil, "renews"), ca)
	_, err := renews.ReloadSecurity(context.Background(), nil)
	require.NoError(t, err)
	gone := happened(t, owner.Engine, event.PeerDisconnected)
	require.Equal(t, "dns:ends", gone.Note)
	require.ErrorContains(t, gone.Err, "expired")
	mustFail(t, one, theirs)
	require.NoError(t, two.write())
	require.Equal(t, two.own, other)
	require.Len(t, owner.Peers(), 1)
	require.True(t, owner.Peers()[0].Until.After(time.Now().Add(time.Minute)))
}

// An identity that is taken off the list loses its lanes with the reload, and no other peer notices.
func TestAnIdentityOffTheListLosesItsAccess(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "dns:a", "dns:b")
	a, b := newMember(t, ca.Issue(t, nil, "a"), ca, nil, "*"), newMember(t, ca.Issue(t, nil, "b"), ca, nil, "*")
	theirs, other := offer(t, owner.Engine, pageBytes, "kv"), offer(t, owner.Engine, pageBytes, "other")
	one, two := newWriter(t, a.Engine, owner.Engine, "kv"), newWriter(t, b.Engine, owner.Engine, "other")
	require.NoError(t, one.write())
	require.NoError(t, two.write())
	changed, err := owner.ReloadSecurity(context.Background(), []string{"dns:b"})
	require.NoError(t, err)
	require.True(t, changed)
	mustFail(t, one, theirs)
	require.NoError(t, two.write())
	require.Equal(t, two.own, other)
	_, err = a.OpenSegment(context.Background(), owner.Address())
	require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err))
}

// An engine that has shown its new identity to nobody yet is asked, and stays where that is listed. So the last step of
// a change of identities takes no lanes.
func TestAnEngineStaysUnderItsNewIdentity(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "dns:old", "dns:new")
	a := newMember(t, ca.Issue(t, nil, "old"), ca, nil, "*")
	offer(t, owner.Engine, pageBytes, "kv")
	w := newWriter(t, a.Engine, owner.Engine, "kv")
	require.NoError(t, w.write())
	a.files.Write(t, ca.Issue(t, nil, "new"), ca)
	_, err := a.ReloadSecurity(context.Background(), nil)
	require.NoError(t, err)
	_, err = owner.ReloadSecurity(context.Background(), []string{"dns:new"})
	require.NoError(t, err)
	require.NoError(t, w.write())
	require.Equal(t, "dns:new", owner.Peers()[0].Peer.Identity)
	require.Empty(t, losses(t, owner.Engine))
}

// Disconnect ends a peer's access when it returns, also that of transfers under way, in every mode.
func TestADisconnectedPeerTouchesNothing(t *testing.T) {
	for name, settings := range map[string]map[string]any{
		"over sockets": {"transports/shm/enable": false}, "over shared memory": {"transports/shm/enable": true},
	} {
		t.Run(name, func(t *testing.T) {
			owner, other := victim(t, settings), victim(t, settings)
			theirs := offer(t, owner, pageBytes, "kv")
			w := newWriter(t, other, owner, "kv")
			back := offer(t, other, pageBytes, "back")
			opened := newWriter(t, owner, other, "back")
			require.NoError(t, w.write())
			require.NoError(t, opened.write())
			peers := owner.Peers()
			require.Len(t, peers, 1)
			require.Equal(t, other.Self().ID, peers[0].Peer.ID)
			require.True(t, peers[0].Connected && peers[0].Open)
			ended := make(chan error, 1)
			go func() {
				for {
					if err := w.write(); err != nil {
						ended <- err
						return
					}
				}
			}()
			before := w.moves.Load()
			require.Eventually(t, func() bool { return w.moves.Load() > before+5 }, patience, time.Millisecond)
			_, err := owner.Disconnect(context.Background(), "dns:nobody")
			require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
			n, err := owner.Disconnect(context.Background(), peers[0].Peer.ID.String())
			require.NoError(t, err)
			require.Equal(t, 1, n)
			after := append([]byte(nil), theirs...)
			select {
			case err := <-ended:
				t.Log(err)
			case <-time.After(patience):
				require.FailNow(t, "a transfer of the peer never ended")
			}
			require.Equal(t, after, theirs, "a byte landed behind the return of Disconnect")
			mustFail(t, w, theirs)
			unwritten := append([]byte(nil), back...)
			err = opened.write()
			require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), "%v", err)
			require.Equal(t, unwritten, back, "our own transfers to it end, too")
			require.Empty(t, owner.Peers())
			_, err = other.OpenSegment(context.Background(), owner.Address())
			require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err))
			again := victim(t, settings)
			require.NoError(t, newWriter(t, again, owner, "kv").write(), "another engine of the user is admitted")
		})
	}
}
