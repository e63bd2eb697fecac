package rdma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// newRigBetween is a rig of one rail, from the first device at one end to the second at the other.
func newRigBetween(t *testing.T, knobs ...string) *rig {
	t.Helper()
	return newRigBetweenWith(t, func(*Settings) {}, knobs...)
}

func newRigBetweenWith(t *testing.T, change func(*Settings), knobs ...string) *rig {
	t.Helper()
	ends := 0
	return newRigOver(t, 2, func(s *Settings) {
		s.Devices = [][]string{{"fake0"}, {"fake1"}}[ends%2]
		ends++
		change(s)
	}, knobs...)
}

// TestARailIsBackWhenItsPortIs, and not at its next try to connect: that comes in an hour here.
func TestARailIsBackWhenItsPortIs(t *testing.T) {
	r := newRigBetweenWith(t, func(s *Settings) { s.Pause = time.Hour })
	for range 3 {
		tries := r.f.Control(t, "ports")
		r.f.Control(t, "port fake0 0")
		await(t, "the rail to go down", func() bool { return r.rails() == 0 })
		await(t, "a try to connect", func() bool { return r.f.Control(t, "ports") > tries })
		r.f.Control(t, "port fake0 1")
		await(t, "the rail to come back", func() bool { return r.rails() == 1 })
		r.works(t)
	}
}

// TestPortsOfInfiniBandAreReachedByTheirLIDs: no packet has a global header then, which has the hop limit.
func TestPortsOfInfiniBandAreReachedByTheirLIDs(t *testing.T) {
	r := newRigBetween(t, "infiniband 1")
	require.Zero(t, r.pair(t, 0).Hops)
	r.works(t)
}

// TestPortsThatShareALIDAreReachedByTheirAddresses, as virtual functions do, whichever end it is.
func TestPortsThatShareALIDAreReachedByTheirAddresses(t *testing.T) {
	for _, end := range []string{"fake0", "fake1"} {
		t.Run(end, func(t *testing.T) {
			r := newRigBetween(t, "infiniband 1", "routed "+end+" 1")
			require.EqualValues(t, 16, r.pair(t, 0).Hops)
			r.works(t)
		})
	}
}

// TestPortsOfTwoSubnetsAreNotConnected: the LID of the one is somebody else's in the other.
func TestPortsOfTwoSubnetsAreNotConnected(t *testing.T) {
	r := newRig(t, nil, "infiniband 1", "subnet fake1 1")
	r.works(t)
	list, err := r.first().device.addresses()
	require.NoError(t, err)
	_, err = r.a.Transport.(*Transport).nics()[1].answering(&end{gid: list[0].GID, kind: addressInfiniBand})
	require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err), "%v", err)
	_, err = r.first().device.answering(&end{gid: list[0].GID, kind: addressInfiniBand})
	require.NoError(t, err)
}

// TestTheHeaderThatAnEndNeedsIsTold by the bit above its LID, which engines of before do not look at.
func TestTheHeaderThatAnEndNeedsIsTold(t *testing.T) {
	for _, route := range []bool{false, true} {
		told := end{lid: 0xfffe, route: route, kind: addressInfiniBand, mtu: 5, lanes: []laneEnd{{pair: 7}}}
		read := decodeEnd(kit.NewReader(told.encode(nil)))
		require.True(t, read.valid())
		require.Equal(t, told, read)
	}
}

// TestTheREADsOfAQueuePairAreThoseThatBothDevicesCan, in both directions.
func TestTheREADsOfAQueuePairAreThoseThatBothDevicesCan(t *testing.T) {
	for _, each := range [][2]string{{"reads-most fake0 4", "reads-most fake1 2"},
		{"reads-most fake0 2", "reads-most fake1 4"}} {
		r := newRigBetween(t, each[:]...)
		require.EqualValues(t, 2, r.pair(t, 0).Reads)
		r.works(t)
	}
}

// TestThePacketsOfAQueuePairAreThoseThatBothPortsTake, whichever port has the smaller ones.
func TestThePacketsOfAQueuePairAreThoseThatBothPortsTake(t *testing.T) {
	for _, each := range [][2]string{{"mtu fake0 4", "mtu fake1 3"}, {"mtu fake0 3", "mtu fake1 4"}} {
		r := newRigBetween(t, each[:]...)
		require.EqualValues(t, 3, r.pair(t, 0).MTU)
		r.works(t)
	}
}

// TestNoRequestIsLongerThanThePortTakes: Soft-RoCE takes 8 MiB, and block_size may be more.
func TestNoRequestIsLongerThanThePortTakes(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Block = 1 << 30 }, "message 65536")
	r.c.Must(t, r.c.Slice(transport.Write, r.c.Rail(t), r.local, 0, r.remote, 0, rigSize))
	require.NoError(t, r.remote.Check(moved, 0, 0, rigSize))
	require.Empty(t, r.downs.all())
}

// TestNoAddressIsUsedThatAQueuePairCannotName: its field has 8 bits, and a table may be longer.
func TestNoAddressIsUsedThatAQueuePairCannotName(t *testing.T) {
	r := newRigOver(t, 1, nil, "gids 300")
	list, err := r.first().device.addresses()
	require.NoError(t, err)
	require.Len(t, list, 256)
	for _, g := range list {
		require.LessOrEqual(t, g.Index, 255)
	}
	r.works(t)
}

// TestAnotherAddressOfAPortTakesNoRailDown: those come and go with containers and their interfaces. The news of a
// device come in turn, so an address of the rail that changes ends the wait.
func TestAnotherAddressOfAPortTakesNoRailDown(t *testing.T) {
	r := newRigOver(t, 1, nil)
	rail := r.c.Rail(t)
	for range 3 {
		r.f.Control(t, "event fake0 %d", verbs.GIDChanged)
	}
	r.f.Control(t, "gids 4")
	r.f.Control(t, "event fake0 %d", verbs.GIDChanged)
	r.works(t)
	require.Equal(t, rail, r.c.Rail(t))
	require.Empty(t, r.downs.all())
	r.f.Control(t, "address fake0 7")
	await(t, "the rail to go down", func() bool { return len(r.downs.all()) > 0 })
	require.Len(t, r.downs.all(), 1)
	await(t, "the rail to come back", func() bool { return r.rails() == 1 })
	r.works(t)
}
