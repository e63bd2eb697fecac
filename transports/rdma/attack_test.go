package rdma

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
	"github.com/tent-engine/tent/transports/transporttest"
)

// forge posts a work request on a queue pair of the first node, behind all of its checks. It reports whether the
// owner's device has carried it out.
func (r *rig) forge(t *testing.T, op uint32, key uint32, at uint64) bool {
	t.Helper()
	r.works(t) // its lanes are connected, also behind the attack before
	return r.forgeOn(t, r.railOfA(t), op, key, at)
}

func (r *rig) railOfA(t *testing.T) *rail {
	t.Helper()
	return r.a.Transport.(*Transport).links.Lookup(r.c.Link).rail(r.c.Rail(t).Index)
}

// forgeOn is forge on the queue pair that a rail has now.
func (r *rig) forgeOn(t *testing.T, rail *rail, op uint32, key uint32, at uint64) bool {
	t.Helper()
	own := r.a.Transport.(*Transport).regions.Lookup(r.local.Key)
	carriedOut := r.evidence(t, op)
	rail.mu.Lock()
	pair := rail.lanes[0].pair
	wr := &pair.Chain[0]
	wr.ID, wr.Op, wr.Remote, wr.RKey, wr.Flags = 1<<63, op, at, key, verbs.Signaled
	wr.Reach(uint64(own.Addr), forged, own.keys.Load().own(rail.device.index).parts[0].LKey)
	_, err := pair.Post(1)
	rail.unlock()
	require.NoError(t, err)
	passed := false
	await(t, "the end of the attack", func() bool {
		passed = carriedOut()
		attributes, err := pair.Query()
		return passed || err == nil && attributes.State == pairFailed
	})
	return passed
}

// evidence returns a look for the proof that the owner's device has carried an attack out. The fake counts; on real
// devices a byte of the owner's memory changes, or one of the attacker's.
func (r *rig) evidence(t *testing.T, op uint32) func() bool {
	t.Helper()
	if r.f != nil {
		count := func() int { return r.f.Control(t, "reads") + r.f.Control(t, "writes") }
		done := count()
		return func() bool { return count() > done }
	}
	node := r.b
	if op == verbs.OpRead {
		node = r.a
	}
	memory := func() (all [][]byte) {
		for _, each := range node.Transport.(*Transport).regions.All() {
			all = append(all, bytes.Clone(mem.Bytes(each.Addr, int(each.Size))))
		}
		return all
	}
	was := memory()
	return func() bool { return !slices.EqualFunc(was, memory(), bytes.Equal) }
}

const (
	forged     = 4096 // bytes of an attack
	pairFailed = 6    // Attributes.State
)

// TestAMaliciousInitiatorReachesNothingThatItMayNot has a peer that skips all checks of its own side. The owner's
// device is the last line: memory that is not registered for others cannot be reached with any key or address.
func TestAMaliciousInitiatorReachesNothingThatItMayNot(t *testing.T) {
	reachesNothing(t, newRigOver(t, 1, nil))
}

func TestAMaliciousInitiatorReachesNothingOnDevices(t *testing.T) {
	reachesNothing(t, newRigOnDevices(t))
}

func reachesNothing(t *testing.T, r *rig) {
	owner := r.b.Transport.(*Transport)
	keysOf := func(o *transporttest.Operand) *keys { return owner.regions.Lookup(o.Key).keys.Load() }
	remote := func(o *transporttest.Operand) uint32 { return keysOf(o).remote[0].parts[0].RKey }
	local := func(o *transporttest.Operand) uint32 { return keysOf(o).local[0].parts[0].LKey }
	start := func(o *transporttest.Operand) uint64 { return base(owner.regions.Lookup(o.Key).Addr) }
	nobodys := r.b.Register(t, rigSize, mem.LocalReadWrite)
	readable := r.b.Register(t, rigSize, mem.GlobalReadOnly)
	shared := r.b.Register(t, rigSize, mem.GlobalReadWrite)
	closed := r.b.Register(t, rigSize, mem.GlobalReadWrite)
	oldKey, oldStart := remote(closed), start(closed)
	closed.Deregister(t)
	require.Nil(t, keysOf(nobodys).remote[0], "memory for nobody has a registration for peers")

	for _, attack := range []struct {
		name   string
		victim *transporttest.Operand
		key    uint32
		at     uint64
		ops    []uint32
		lands  bool
	}{
		{"none: memory for everybody", shared, remote(shared), start(shared), bothWays, true},
		{"none: a READ of memory for reading", readable, remote(readable), start(readable),
			[]uint32{verbs.OpRead}, true},
		{"a WRITE to memory for reading", readable, remote(readable), start(readable),
			[]uint32{verbs.OpWrite}, false},
		{"the local key of memory for nobody", nobodys, local(nobodys), start(nobodys), bothWays, false},
		{"that key, and the address in the owner", nobodys, local(nobodys),
			uint64(owner.regions.Lookup(nobodys.Key).Addr), bothWays, false},
		{"a key of other memory", nobodys, remote(shared), start(shared) + rigSize + 4096, bothWays, false},
		{"bytes behind the end", shared, remote(shared), start(shared) + rigSize - forged/2, bothWays,
			false},
		{"bytes before the start", shared, remote(shared), start(shared) - forged/2, bothWays, false},
		{"an address that wraps around", shared, remote(shared), ^uint64(0) - forged/2, bothWays, false},
		{"the key of a closed region", closed, oldKey, oldStart, bothWays, false},
		{"a guessed key", shared, ^remote(shared), start(shared), bothWays, false},
	} {
		for _, op := range attack.ops {
			t.Run(attack.name, func(t *testing.T) {
				r.local.Fill(moved, 0, rigSize)
				attack.victim.Fill(before, 0, rigSize)
				require.Equal(t, attack.lands, r.forge(t, op, attack.key, attack.at), "the device has carried it out")
				theirs, ours := uint64(before), uint64(moved)
				if attack.lands && op == verbs.OpWrite {
					theirs = moved
				} else if attack.lands {
					ours = before
				}
				require.NoError(t, attack.victim.Check(theirs, 0, 0, forged))
				require.NoError(t, attack.victim.Check(before, forged, forged, rigSize-forged))
				require.NoError(t, r.local.Check(ours, 0, 0, forged))
				r.local.Fill(moved, 0, rigSize)
			})
		}
	}
}

// TestAMaliciousInitiatorThatDoesNotHearAFenceIsCutOff plays a peer that skips its checks and answers nothing. When the
// fence has returned, the queue pair that it had reaches no byte of the region, also where the fence is for it alone.
func TestAMaliciousInitiatorThatDoesNotHearAFenceIsCutOff(t *testing.T) {
	for name, one := range map[string]bool{"for all": false, "for it alone": true} {
		for _, op := range []uint32{verbs.OpWrite, verbs.OpRead} {
			t.Run(name, func(t *testing.T) {
				r := newRigOver(t, 1, nil)
				owner := r.b.Transport.(*Transport)
				theirs := r.b.Register(t, rigSize, mem.GlobalReadWrite)
				imported := r.c.Import(t, theirs)
				r.c.Must(t, r.c.Slice(transport.Read, r.c.Rail(t), r.local, 0, imported, 0, 1))
				victim := owner.regions.Lookup(theirs.Key)
				key, at := victim.keys.Load().remote[0].parts[0].RKey, base(victim.Addr)
				r.local.Fill(moved, 0, rigSize)
				require.True(t, r.forge(t, op, key, at), "the way is open before the fence")
				r.local.Fill(moved, 0, rigSize)
				r.works(t)
				rail := r.railOfA(t)
				r.local.Fill(moved, 0, rigSize)
				theirs.Fill(before, 0, rigSize)
				r.mute.Store(true)
				var peer *transport.Peer
				if one {
					peer = &r.a.Peer
				}
				require.NoError(t, owner.Revoke(t.Context(), theirs.Key, peer, 1))
				require.False(t, r.forgeOn(t, rail, op, key, at), "the device has carried it out")
				require.NoError(t, theirs.Check(before, 0, 0, rigSize))
				require.NoError(t, r.local.Check(moved, 0, 0, rigSize))
				r.mute.Store(false)
			})
		}
	}
}

// TestAMaliciousInitiatorThatAnswersAFenceKeepsNoKey plays a peer that answers the fence, and then posts by the key of
// before on a queue pair that still works. The engine of an honest peer has the new key and goes on.
func TestAMaliciousInitiatorThatAnswersAFenceKeepsNoKey(t *testing.T) {
	for _, c := range []struct {
		name  string
		one   bool
		epoch transport.Epoch
		knobs []string
	}{
		{"a fence for all", false, 1, nil},
		{"a fence for it alone", true, 1, nil},
		{"its right to the region ends", true, transport.ForGood, nil},
		{"keys come back at once", false, 1, []string{"reuse 1"}},
	} {
		for _, op := range bothWays {
			t.Run(c.name, func(t *testing.T) { keepsNoKey(t, newRigOver(t, 1, nil, c.knobs...), op, c.one, c.epoch) })
		}
	}
}

// The same on real queue pairs: their NIC is the last line there, too.
func TestAMaliciousInitiatorKeepsNoKeyOnDevices(t *testing.T) {
	for _, op := range bothWays {
		for _, one := range []bool{false, true} {
			t.Run(fmt.Sprintf("one=%t", one), func(t *testing.T) { keepsNoKey(t, newRigOnDevices(t), op, one, 1) })
		}
		t.Run("its right to the region ends", func(t *testing.T) {
			keepsNoKey(t, newRigOnDevices(t), op, true, transport.ForGood)
		})
	}
}

var bothWays = []uint32{verbs.OpWrite, verbs.OpRead}

func keepsNoKey(t *testing.T, r *rig, op uint32, one bool, epoch transport.Epoch) {
	owner := r.b.Transport.(*Transport)
	theirs := r.c.Import(t, r.b.Register(t, rigSize, mem.GlobalReadWrite))
	key, at := rkey(r.b, theirs.Operand.Key), base(theirs.Addr)
	r.open(t, op, key, at, theirs.Operand)
	rail := r.railOfA(t)
	pair := rail.lanes[0].pair
	var peer *transport.Peer
	if one {
		peer = &r.a.Peer
	}
	require.NoError(t, owner.Revoke(t.Context(), theirs.Operand.Key, peer, epoch))
	attributes, err := pair.Query()
	require.NoError(t, err)
	require.NotEqual(t, pairFailed, int(attributes.State), "the fence leaves its other transfers alone")
	require.False(t, r.forgeOn(t, rail, op, key, at), "the device has carried it out")
	require.NoError(t, theirs.Check(before, 0, 0, rigSize))
	require.NoError(t, r.local.Check(moved, 0, 0, rigSize))
	if theirs.Update(); epoch != transport.ForGood {
		r.c.Renew(t, theirs)
		r.reaches(t, theirs, epoch)
	}
}

// open requires that a key is good on a lane that works, and fills both operands for the next attack.
func (r *rig) open(t *testing.T, op uint32, key uint32, at uint64, theirs *transporttest.Operand) {
	t.Helper()
	r.local.Fill(moved, 0, rigSize)
	require.True(t, r.forge(t, op, key, at), "the way is open before")
	r.local.Fill(moved, 0, rigSize) // a READ has filled it
	r.works(t)
	theirs.Fill(before, 0, rigSize)
}

// reaches requires that a slice of an epoch reaches a region, also where a lane is connected anew.
func (r *rig) reaches(t *testing.T, to *transporttest.Remote, epoch transport.Epoch) {
	t.Helper()
	await(t, "a slice by the new key", func() bool {
		s := r.c.Slice(transport.Write, r.c.Rail(t), r.local, 0, to, 0, forged)
		s.Epoch = max(s.Epoch, epoch)
		return r.c.Submit(s) == 1 && r.c.Wait(t, s)[0].Err == nil
	})
	require.NoError(t, to.Check(moved, 0, 0, forged))
}

// TestADisconnectedPeerHasNoQueuePair has a peer post by the key of a region after its end, and attach again.
func TestADisconnectedPeerHasNoQueuePair(t *testing.T) {
	hasNoQueuePair(t, func(t *testing.T) *rig { return newRigOver(t, 1, nil) })
}

func TestADisconnectedPeerHasNoQueuePairOnDevices(t *testing.T) { hasNoQueuePair(t, newRigOnDevices) }

func hasNoQueuePair(t *testing.T, open func(*testing.T) *rig) {
	for _, op := range bothWays {
		r := open(t)
		owner := r.b.Transport.(*Transport)
		theirs := r.b.Register(t, rigSize, mem.GlobalReadWrite)
		key, at := rkey(r.b, theirs.Key), base(theirs.Addr)
		r.open(t, op, key, at, theirs)
		rail := r.railOfA(t)
		owner.Disconnect(r.a.Peer.ID)
		require.NoError(t, owner.Revoke(t.Context(), theirs.Key, &r.a.Peer, transport.ForGood))
		require.Equal(t, key, rkey(r.b, theirs.Key), "the end of a peer costs others no new key")
		require.False(t, r.forgeOn(t, rail, op, key, at), "the device has carried it out")
		require.NoError(t, theirs.Check(before, 0, 0, rigSize))
		require.NoError(t, r.local.Check(moved, 0, 0, rigSize))
		owner.guests.out[r.a.Peer.ID].since = time.Now().Add(-time.Hour)
		_, err := owner.guest(r.a.Peer, 99, true)
		require.Equal(t, errs.PeerNotAdmitted, err.Code)
	}
}

// TestADisconnectedPeerComesBackWhereNothingWasTakenFromIt, as one does that had nothing open when its certificate
// ended, and has a newer one later. Calls from before its end are refused meanwhile.
func TestADisconnectedPeerComesBackWhereNothingWasTakenFromIt(t *testing.T) {
	r := newRigOver(t, 1, nil)
	owner := r.b.Transport.(*Transport)
	owner.Disconnect(r.a.Peer.ID)
	_, err := owner.guest(r.a.Peer, uint64(r.c.Link), false)
	require.Equal(t, errs.PeerNotAdmitted, err.Code, "its links have ended")
	_, err = owner.guest(r.a.Peer, 99, true)
	require.Equal(t, errs.Timeout, err.Code, "it asks again")
	require.False(t, final(err))
	owner.guests.mu.Lock()
	owner.guests.out[r.a.Peer.ID].since = time.Now().Add(-exileLeast - 1)
	owner.guests.mu.Unlock()
	again := r.a.Connect(t, r.b)
	await(t, "the rail of a new link", func() bool { return len(again.Rails()) > 0 })
	theirs := again.Import(t, r.remote.Operand)
	again.Must(t, again.Slice(transport.Write, again.Rail(t), r.local, 0, theirs, 0, 4096))
	require.NoError(t, r.remote.Check(moved, 0, 0, 4096))
	require.Empty(t, owner.guests.out)
}

// TestAPeerThatWasHereWhenARegionWasMadeKeepsNoKey: it has left before the fence, and may come again with the key.
func TestAPeerThatWasHereWhenARegionWasMadeKeepsNoKey(t *testing.T) {
	r := newRigOver(t, 1, nil)
	owner := r.b.Transport.(*Transport)
	theirs := r.b.Register(t, rigSize, mem.GlobalReadWrite)
	for range 2 { // the second fence is that of keys which the first one has made with nobody here
		key := rkey(r.b, theirs.Key)
		for _, g := range owner.guests.all(r.a.Peer.ID) {
			require.NoError(t, owner.dismiss(g))
		}
		theirs.Fence(t, nil)
		require.NotEqual(t, key, rkey(r.b, theirs.Key), "it may have learned of the key")
		key = rkey(r.b, theirs.Key)
		theirs.Fence(t, nil)
		require.Equal(t, key, rkey(r.b, theirs.Key), "nobody was here since then")
		r.a.Connect(t, r.b)
	}
}

// TestAFenceWithoutPeersRegistersNothing: keys that nobody was here to use are kept.
func TestAFenceWithoutPeersRegistersNothing(t *testing.T) {
	r := newRigOver(t, 1, nil)
	fenced := func(n *transporttest.Node, o *transporttest.Operand) bool {
		key := rkey(n, o.Key)
		require.NoError(t, n.Transport.Revoke(t.Context(), o.Key, nil, 1))
		return rkey(n, o.Key) != key
	}
	alone, seen := r.a.Register(t, rigSize, mem.GlobalReadWrite), r.b.Register(t, rigSize, mem.GlobalReadWrite)
	require.False(t, fenced(r.a, alone), "nobody has attached to the first node")
	require.True(t, fenced(r.b, seen), "a guest is here")
	_, err := r.b.Transport.(*Transport).guest(transport.Peer{ID: transport.NumberedID(99)}, 1, true)
	require.Nil(t, err)
	for _, g := range r.b.Transport.(*Transport).guests.all(transport.ID{}) {
		require.NoError(t, r.b.Transport.(*Transport).dismiss(g))
	}
	require.True(t, fenced(r.b, seen), "a guest has come and left: it may come back with the key")
	require.False(t, fenced(r.b, seen), "and it cannot have this one")
}

// TestADeviceWithoutRoomForTwoKeysGetsTheNewOneLast: at the limit of locked memory, the old key makes room for the new.
func TestADeviceWithoutRoomForTwoKeysGetsTheNewOneLast(t *testing.T) {
	r := newRigOver(t, 1, nil)
	owner := r.b.Transport.(*Transport)
	key := rkey(r.b, r.remote.Operand.Key)
	r.f.Control(t, "register 1")
	require.NoError(t, owner.Revoke(t.Context(), r.remote.Operand.Key, nil, 1))
	require.NotEqual(t, key, rkey(r.b, r.remote.Operand.Key))
	r.remote.Update()
	r.c.Renew(t, r.remote)
	r.reaches(t, r.remote, 1)
}

// TestADeviceThatGivesTheOldKeyAgainHasNone: the next fence asks it once more.
func TestADeviceThatGivesTheOldKeyAgainHasNone(t *testing.T) {
	r := newRigOver(t, 1, nil, "reuse 1")
	owner := r.b.Transport.(*Transport)
	region := owner.regions.Lookup(r.remote.Operand.Key)
	key := rkey(r.b, r.remote.Operand.Key)
	r.works(t) // its lanes are connected
	r.f.Control(t, "register 1")
	require.NoError(t, owner.Revoke(t.Context(), r.remote.Operand.Key, nil, 1))
	require.Nil(t, region.keys.Load().remote[0])
	passed := r.forgeOn(t, r.railOfA(t), verbs.OpRead, key, base(r.remote.Addr))
	require.False(t, passed, "the device has carried it out")
	require.NoError(t, owner.Revoke(t.Context(), r.remote.Operand.Key, nil, 2))
	r.remote.Update()
	r.c.Renew(t, r.remote)
	r.reaches(t, r.remote, 2)
}
