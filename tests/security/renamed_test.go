package security

import (
	"context"
	"crypto/x509"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// An engine that shows a certificate with another identity keeps its lanes. By them it has the regions of the new
// identity, and none of the old one.
func TestLanesHaveTheRightsOfTheNewIdentityAlone(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "dns:old", "dns:new")
	a := newMember(t, ca.Issue(t, nil, "old"), ca, nil, "*")
	theirs := offer(t, owner.Engine, pageBytes, "kv", "dns:old")
	offer(t, owner.Engine, pageBytes, "all")
	offer(t, owner.Engine, pageBytes, "both", "dns:old", "dns:new")
	w := newWriter(t, a.Engine, owner.Engine, "kv")
	all, both := newWriter(t, a.Engine, owner.Engine, "all"), newWriter(t, a.Engine, owner.Engine, "both")
	for _, each := range []*writer{w, all, both} {
		require.NoError(t, each.write())
	}
	a.files.Write(t, ca.Issue(t, nil, "new"), ca)
	_, err := a.ReloadSecurity(context.Background(), nil)
	require.NoError(t, err)
	_, err = owner.ReloadSecurity(context.Background(), []string{"dns:new"})
	require.NoError(t, err)
	mustFail(t, w, theirs)
	offer(t, owner.Engine, pageBytes, "later", "dns:new")
	for _, each := range []*writer{all, both, newWriter(t, a.Engine, owner.Engine, "later")} {
		require.NoError(t, each.write())
	}
	for _, lost := range losses(t, owner.Engine) {
		require.Equal(t, event.AccessRefused, lost.Kind, "%+v", lost)
	}
}

// The end of a certificate is that of its identity's rights, where the engine has another one by then.
func TestTheRightsOfACertificateEndWithIt(t *testing.T) {
	t.Parallel() // it waits for seconds
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "*")
	brief := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(3 * time.Second) }
	a := newMember(t, ca.Issue(t, brief, "admin"), ca, nil, "*")
	theirs := offer(t, owner.Engine, pageBytes, "kv", "dns:admin")
	w := newWriter(t, a.Engine, owner.Engine, "kv")
	require.NoError(t, w.write())
	a.files.Write(t, ca.Issue(t, nil, "worker"), ca)
	_, err := a.ReloadSecurity(context.Background(), nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.write() != nil }, patience, 10*time.Millisecond)
	mustFail(t, w, theirs)
	require.Equal(t, "dns:worker", owner.Peers()[0].Peer.Identity)
}

// A connection of before a newer handshake gives the rights of its identity back to nobody.
func TestAConnectionOfTheOldIdentityRevivesNoRights(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "*")
	offer(t, owner.Engine, pageBytes, "kv", "dns:old")
	offer(t, owner.Engine, pageBytes, "new", "dns:new")
	f := securitytest.NewFiles(t)
	f.Write(t, ca.Issue(t, nil, "old"), ca)
	credentials, err := security.Open(security.Settings{Allow: []string{"*"},
		Files: security.Files{Certificate: f.Certificate, Key: f.Key, Authorities: f.Root}})
	require.NoError(t, err)
	client := func() *control.Client {
		c := control.NewClient(control.Options{Credentials: credentials,
			Self: func() transport.Peer { return transport.Peer{Network: owner.Self().Network} }})
		t.Cleanup(c.Close)
		return c
	}
	called, greeted, newer := client(), client(), client()
	sees := func(c *control.Client, names ...string) {
		t.Helper()
		d, err := c.Describe(t.Context(), owner.Self(), nil)
		require.NoError(t, err)
		var list []string
		for _, r := range d.Regions {
			list = append(list, r.Name)
		}
		require.Equal(t, names, slices.Sorted(slices.Values(list)))
	}
	sees(called, "kv")
	_, err = greeted.Hello(t.Context(), owner.Address())
	require.NoError(t, err)
	f.Write(t, ca.Issue(t, nil, "new"), ca)
	_, err = credentials.Reload(nil)
	require.NoError(t, err)
	for _, c := range []*control.Client{newer, called, greeted, newer} {
		sees(c, "new")
		require.Equal(t, "dns:new", owner.Peers()[0].Peer.Identity)
	}
}

// A peer that was opened by a blob, which says no identity, has the one that it proves, and loses its access with it.
func TestAPeerOfABlobIsKnownByItsProof(t *testing.T) {
	for name, ends := range map[string]func(t *testing.T, a member) error{
		"list": func(t *testing.T, a member) error {
			_, err := a.ReloadSecurity(context.Background(), []string{"dns:c"})
			return err
		},
		"disconnect": func(t *testing.T, a member) error {
			n, err := a.Disconnect(context.Background(), "dns:b")
			require.Equal(t, 1, n)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca := securitytest.NewAuthority(t, nil)
			a := newMember(t, ca.Issue(t, nil, "a"), ca, nil, "*")
			b := newMember(t, ca.Issue(t, nil, "b"), ca, nil, "*")
			theirs := offer(t, b.Engine, pageBytes, "kv")
			blob, err := b.Export([]string{"kv"})
			require.NoError(t, err)
			w := &writer{from: a.Engine, own: offer(t, a.Engine, pageBytes, "")}
			w.at, err = a.OpenBlob(blob)
			require.NoError(t, err)
			d, err := segment.Decode(blob)
			require.NoError(t, err)
			w.region = d.Find("kv").ID
			require.NoError(t, w.write())
			info, err := a.Segment(t.Context(), w.at, false)
			require.NoError(t, err)
			require.Equal(t, "dns:b", info.Peer.Identity)
			require.Equal(t, "dns:b", a.Peers()[0].Peer.Identity)
			require.NoError(t, ends(t, a))
			mustFail(t, w, theirs)
		})
	}
}

// A peer that has our description shows another identity. It finds the regions that are for that one at once.
func TestANewIdentitySeesTheRegionsOfBefore(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "dns:old", "dns:new")
	a := newMember(t, ca.Issue(t, nil, "old"), ca, nil, "*")
	for _, name := range []string{"all", "more", "most"} { // of many regions, peers hear the changes alone
		offer(t, owner.Engine, pageBytes, name)
	}
	offer(t, owner.Engine, pageBytes, "later", "dns:new")
	require.NoError(t, newWriter(t, a.Engine, owner.Engine, "all").write())
	a.files.Write(t, ca.Issue(t, nil, "new"), ca)
	_, err := a.ReloadSecurity(context.Background(), nil)
	require.NoError(t, err)
	_, err = owner.ReloadSecurity(context.Background(), []string{"dns:new"})
	require.NoError(t, err)
	require.NoError(t, newWriter(t, a.Engine, owner.Engine, "later").write())
}

// An engine has called by a newer certificate. It is opened as the one that it is now, over no connection of before.
func TestAnEngineIsOpenedByItsNewestIdentity(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "*")
	a := newMember(t, ca.Issue(t, nil, "old"), ca, nil, "*")
	opens := func(identity string) error {
		_, err := owner.OpenWith(t.Context(), a.Address(), engine.OpenOptions{Identities: []string{identity}})
		return err
	}
	require.NoError(t, opens("dns:old"))
	a.files.Write(t, ca.Issue(t, nil, "new"), ca)
	_, err := a.ReloadSecurity(context.Background(), nil)
	require.NoError(t, err)
	_, err = a.OpenSegment(t.Context(), owner.Address())
	require.NoError(t, err)
	require.NoError(t, opens("dns:new"))
	require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(opens("dns:old")))
}

// A connection of ours to a peer that we have disconnected carries no further call.
func TestADisconnectedPeerIsNotOpenedAgain(t *testing.T) {
	owner, other := victim(t), victim(t)
	_, err := owner.OpenSegment(t.Context(), other.Address())
	require.NoError(t, err)
	n, err := owner.Disconnect(t.Context(), other.Address())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = owner.OpenSegment(t.Context(), other.Address())
	require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), "%v", err)
	require.Empty(t, owner.Peers())
}

// delayed is a connection that does something before its first byte goes out.
type delayed struct {
	net.Conn
	first func()
}

func (d *delayed) Write(p []byte) (int, error) {
	d.first()
	return d.Conn.Write(p)
}

// A handshake has begun when the files are replaced, and ends behind one that began afterwards. It shows the new
// certificate, too: the identity of the old one would count as the newest.
func TestAHandshakeUnderWayShowsTheNewCertificate(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "*")
	f := securitytest.NewFiles(t)
	f.Write(t, ca.Issue(t, nil, "old"), ca)
	credentials, err := security.Open(security.Settings{Allow: []string{"*"},
		Files: security.Files{Certificate: f.Certificate, Key: f.Key, Authorities: f.Root}})
	require.NoError(t, err)
	describe := func(before func()) {
		before = sync.OnceFunc(before)
		c := control.NewClient(control.Options{Credentials: credentials,
			Self: func() transport.Peer { return transport.Peer{Network: owner.Self().Network} },
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return &delayed{conn, before}, err
			}})
		t.Cleanup(c.Close)
		_, err := c.Describe(t.Context(), owner.Self(), nil)
		require.NoError(t, err)
		require.Equal(t, "dns:new", owner.Peers()[0].Peer.Identity)
	}
	describe(func() {
		f.Write(t, ca.Issue(t, nil, "new"), ca)
		_, err := credentials.Reload(nil)
		require.NoError(t, err)
		describe(func() {})
	})
}
