package security

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// seen asks the owner for its regions by name.
func seen(t *testing.T, e *engine.Engine, at engine.SegmentID) map[string]segment.Region {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, err := e.Segment(ctx, at, true)
	require.NoError(t, err)
	regions := map[string]segment.Region{}
	for _, r := range info.Regions {
		regions[r.Name] = r
	}
	return regions
}

func names(regions map[string]segment.Region) (list []string) {
	for name := range regions {
		list = append(list, name)
	}
	return list
}

// A peer learns of the regions that are given to it, whenever they come, and of no others.
func TestARegionIsDescribedToItsPeersAlone(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "*")
	a, b := newMember(t, ca.Issue(t, nil, "spiffe://prod/a/0"), ca, nil, "*"),
		newMember(t, ca.Issue(t, nil, "b.svc"), ca, nil, "*")
	offer(t, owner.Engine, pageBytes, "all")
	offer(t, owner.Engine, pageBytes, "a", "spiffe://prod/a/*")
	open := func(from member) engine.SegmentID {
		at, err := from.OpenSegment(context.Background(), owner.Address())
		require.NoError(t, err)
		return at
	}
	byA, byB := open(a), open(b)
	require.ElementsMatch(t, []string{"all", "a"}, names(seen(t, a.Engine, byA)))
	require.ElementsMatch(t, []string{"all"}, names(seen(t, b.Engine, byB)))
	_, err := b.OpenSegment(context.Background(), owner.Address()+"/a")
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))
	for range 20 { // then a change is shorter than the whole
		offer(t, owner.Engine, 4096, "")
	}
	offer(t, owner.Engine, pageBytes, "b", "dns:*.svc")
	offer(t, owner.Engine, pageBytes, "both", "dns:b.svc", "spiffe://prod/**")
	require.ElementsMatch(t, []string{"all", "a", "both"}, names(seen(t, a.Engine, byA)))
	require.ElementsMatch(t, []string{"all", "b", "both"}, names(seen(t, b.Engine, byB)))
	require.NoError(t, newWriter(t, a.Engine, owner.Engine, "both").write())
	require.NoError(t, newWriter(t, b.Engine, owner.Engine, "b").write())
	blob, err := owner.Export(nil)
	require.NoError(t, err)
	d, err := segment.Decode(blob)
	require.NoError(t, err)
	require.NotNil(t, d.Find("all"))
	require.Nil(t, d.Find("a"), "a blob without names has the regions of all peers")
}

// An ID is a name in every mode: it stands in the rules of regions, in security/allow, and where a peer is opened. Mode
// insecure proves it, too, and no other identity.
func TestEnginesAreNamedByTheirIDs(t *testing.T) {
	ctx := context.Background()
	ca := securitytest.NewAuthority(t, nil)
	a, b := newMember(t, ca.Issue(t, nil, "a"), ca, nil, "*"), newMember(t, ca.Issue(t, nil, "b"), ca, nil, "*")
	listed := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, idOf(a.Engine))
	_, err := b.OpenSegment(ctx, listed.Address())
	require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), "%v", err)
	anybody := map[string]any{"insecure": true, "transports/shm/enable": false}
	for name, e := range map[string][3]*engine.Engine{
		"mtls":     {newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "*").Engine, a.Engine, b.Engine},
		"listed":   {listed.Engine, a.Engine, nil},
		"local":    {victim(t), victim(t), victim(t)},
		"insecure": {victim(t, anybody), victim(t, anybody), victim(t, anybody)},
	} {
		owner, friend, other := e[0], e[1], e[2]
		id := idOf(friend)
		offer(t, owner, pageBytes, "exactly", id)
		offer(t, owner, pageBytes, "begins", id[:len("id:")+16]+"*")
		at, err := friend.OpenWith(ctx, owner.Address(), engine.OpenOptions{Identities: []string{idOf(owner)}})
		require.NoError(t, err, name)
		require.ElementsMatch(t, []string{"exactly", "begins"}, names(seen(t, friend, at)), name)
		if other == nil {
			continue
		}
		at, err = other.OpenSegment(ctx, owner.Address())
		require.NoError(t, err, name)
		require.Empty(t, seen(t, other, at), name)
		_, err = other.OpenWith(ctx, owner.Address(), engine.OpenOptions{Identities: []string{id}})
		require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), name)
		n, err := owner.Disconnect(ctx, id)
		require.NoError(t, err, name)
		require.Equal(t, 1, n, name)
	}
}

// A region that is given to one engine by its ID is written by it, and by no other with the same identity.
func TestALaneKnowsTheIDOfItsPeer(t *testing.T) {
	only := map[string]any{"transports/shm/enable": false}
	owner, friend := victim(t, only), victim(t, only)
	offer(t, owner, pageBytes, "theirs", idOf(friend))
	require.NoError(t, newWriter(t, friend, owner, "theirs").write())
}

func idOf(e *engine.Engine) string { return "id:" + e.Self().ID.String() }

// A key that another member gives away opens nothing: the owner knows the engine of each slice.
func TestAKeyOfAnotherPeersRegionOpensNothing(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	owner := newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "*")
	honest := newMember(t, ca.Issue(t, nil, "honest"), ca, nil, "*")
	theirs := offer(t, owner.Engine, pageBytes, "secret", "dns:honest")
	copy(theirs, bytes.Repeat([]byte("secret "), pageBytes/7))
	w := newWriter(t, honest.Engine, owner.Engine, "secret")
	require.NoError(t, w.move(transport.Read))
	require.Equal(t, theirs, w.own)
	stolen := seen(t, honest.Engine, w.at)["secret"].Descriptors["tcp"]

	for name, admitted := range map[string]bool{"honest": true, "other": false} {
		f := securitytest.NewFiles(t)
		f.Write(t, ca.Issue(t, nil, name), ca)
		own := memory(t, pageBytes)
		r := newRogueOf(t, transport.Peer{Address: "127.0.0.1:1", MachineID: owner.Self().MachineID,
			Network: owner.Self().Network}, own, security.Settings{Allow: []string{"*"}, Files: security.Files{
			Certificate: f.Certificate, Key: f.Key, Authorities: f.Root}})
		link, rail, refusal := r.attach(owner.Engine)
		require.Nil(t, refusal)
		key, err := r.transport.Import(link, stolen)
		require.NoError(t, err)
		before := bytes.Clone(theirs)
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			end := r.move(op, rail, key, own)
			if admitted { // which shows that the other one is refused for its identity
				require.Nil(t, end)
				continue
			}
			require.NotNil(t, end)
			require.Equal(t, errs.PermissionDenied, end.Code)
		}
		require.Equal(t, before, theirs)
		require.Equal(t, admitted, bytes.Equal(own, theirs))
	}
}

// An opener names the identity that it means, and says nothing to anybody else.
func TestAnOpenerMeansAnIdentity(t *testing.T) {
	ca := securitytest.NewAuthority(t, nil)
	a, b := newMember(t, ca.Issue(t, nil, "a"), ca, nil, "*"), newMember(t, ca.Issue(t, nil, "b"), ca, nil, "*")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	at, err := a.OpenWith(ctx, b.Address(), engine.OpenOptions{Identities: []string{"dns:x", "dns:b"}, Another: true})
	require.NoError(t, err)
	require.NoError(t, a.CloseSegment(at))
	_, err = a.OpenWith(ctx, b.Address(), engine.OpenOptions{Identities: []string{"dns:c"}})
	require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err))
	require.ErrorContains(t, err, `is "dns:b id:`)
	require.ErrorContains(t, err, `; wanted was dns:c`)
	_, err = a.OpenWith(ctx, b.Address(), engine.OpenOptions{Identities: []string{"b"}})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	_, err = a.OpenWith(ctx, "file:///etc/hostname", engine.OpenOptions{Identities: []string{"dns:b"}})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
}

// Rules that can protect nothing are refused where they are given.
func TestRulesThatProtectNothingAreRefused(t *testing.T) {
	local, anybody := victim(t), victim(t, map[string]any{"insecure": true})
	b := memory(t, 4096)
	m := engine.Memory{Addr: mem.AddressOf(b), Size: 4096, Name: "kv", Location: "cpu:0",
		Permission: mem.GlobalReadOnly, Peers: []string{"uid:0"}}
	_, err := anybody.Register(m)
	require.ErrorContains(t, err, "insecure=true knows no identities")
	private := m
	private.Permission = mem.LocalReadWrite
	_, err = local.Register(private)
	require.ErrorContains(t, err, "the permission lets none in")
	m.Peers = []string{"prefill"}
	_, err = local.Register(m)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	_, _, err = local.Allocate(engine.Memory{Size: 4096, Name: "x", Permission: mem.GlobalReadOnly, Peers: m.Peers})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	m.Peers = []string{} // nobody
	_, err = local.Register(m)
	require.NoError(t, err)
	_, err = victim(t).OpenSegment(context.Background(), local.Address()+"/kv")
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))
}
