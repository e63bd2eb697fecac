package netns

import (
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// hosts are two machines, or two containers of one, with two cables between them: B serves, A uses it.
type hosts struct {
	*netbed.Bed
	startNear, startFar func() (*forked.Child, error)
}

const hostBytes = 4 << 20

func newHosts(t *testing.T, machines int) *hosts {
	t.Helper()
	bed, err := netbed.New(2)
	if errors.Is(err, netbed.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(bed.Close)
	require.NoError(t, bed.Rails[0].AssignMore(bed.A, "fd88::1"))
	require.NoError(t, bed.Rails[0].AssignMore(bed.B, "fd88::2"))
	h := &hosts{bed, bed.A.Start, bed.B.Start}
	if machines == 2 {
		h.startNear, h.startFar = bed.A.StartOnOtherMachine, bed.B.StartOnOtherMachine
	}
	return h
}

// open starts an engine in a child. Settings are Go values by key.
func open(t *testing.T, start func() (*forked.Child, error), settings map[string]any) (*forked.Child, string) {
	t.Helper()
	c, err := start()
	if errors.Is(err, netbed.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	key, err := netbed.ClusterKey(t.TempDir()) // equal bytes for all
	require.NoError(t, err)
	args := netbed.OpenArgs{Settings: map[string]string{"transports/shm/enable": "false",
		"security/cluster_key": strconv.Quote(key)}, Bytes: hostBytes}
	for key, value := range settings {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		args.Settings[key] = string(text)
	}
	var address string
	require.NoError(t, c.Call("Actor.Open", args, &address))
	t.Cleanup(func() {
		var held []string
		require.NoError(t, c.Call("Actor.Close", forked.Nothing{}, &held))
		require.Empty(t, held)
		require.NoError(t, c.Close())
	})
	return c, address
}

// exchange moves a pattern there and back, and looks at every byte.
func exchange(t *testing.T, near, far *forked.Child, seed uint64) {
	t.Helper()
	for _, step := range []struct {
		op       transport.Op
		from, to *forked.Child
	}{{transport.Write, near, far}, {transport.Read, far, near}} {
		seed++
		require.NoError(t, step.from.Call("Actor.Fill", seed, &forked.Nothing{}))
		var out netbed.Outcome
		require.NoError(t, near.Call("Actor.Move", netbed.MoveArgs{Op: step.op}, &out))
		require.Equal(t, "COMPLETED", out.State, out.Error)
		require.NoError(t, step.to.Call("Actor.Check", seed, &forked.Nothing{}))
	}
}

// TestOneAddressOnTheServingSideIsEnough: the serving side names itself, in each of the ways in which people do. The
// other side names nothing. They are two machines, or two containers of one.
func TestOneAddressOnTheServingSideIsEnough(t *testing.T) {
	own := map[string]any{"rpc_server_hostname": "10.88.0.2"}
	for name, c := range map[string]struct {
		far, near map[string]any
	}{
		"address":          {far: own},
		"interface":        {far: map[string]any{"rpc_server_hostname": "e1"}},
		"IPv6":             {far: map[string]any{"rpc_server_hostname": "fd88::2"}},
		"both name":        {far: own, near: map[string]any{"rpc_server_hostname": "10.88.0.1"}},
		"near serves, too": {far: own, near: map[string]any{"rpc_server_hostname": "e1"}},
		"every address": {far: map[string]any{"rpc_server_hostname": "0.0.0.0",
			"rpc_advertise_hostname": "10.88.1.2"}},
		"every address of both families": {far: map[string]any{"rpc_server_hostname": "::",
			"rpc_advertise_hostname": "e0"}},
		"two rails": {far: map[string]any{"rpc_server_hostname": "10.88.0.2",
			"transports/tcp/addresses": []string{"10.88.0.2", "10.88.1.2"}}},
	} {
		for machines := 1; machines <= 2; machines++ {
			t.Run(name+[]string{"", " in containers", " on two machines"}[machines], func(t *testing.T) {
				h := newHosts(t, machines)
				far, address := open(t, h.startFar, c.far)
				near, _ := open(t, h.startNear, c.near)
				require.NoError(t, near.Call("Actor.Connect", address, &forked.Nothing{}))
				exchange(t, near, far, 1)
				if name == "two rails" {
					(&netbed.Pair{Near: near, Transport: "tcp"}).AwaitRails(t, 2)
				}
			})
		}
	}
}

// TestARailFollowsItsRoute: a rail's address goes and another one comes, as when a lease of DHCP ends. The rail comes
// back from there.
func TestARailFollowsItsRoute(t *testing.T) {
	h := newHosts(t, 2)
	far, address := open(t, h.startFar, map[string]any{"rpc_server_hostname": "10.88.0.2"})
	near, _ := open(t, h.startNear, nil)
	require.NoError(t, near.Call("Actor.Connect", address, &forked.Nothing{}))
	exchange(t, near, far, 1)
	require.NoError(t, h.Rails[0].Unassign(h.A))
	require.NoError(t, h.Rails[0].AssignMore(h.A, "10.88.0.9"))
	exchange(t, near, far, 7)
}

// TestOpenSaysThatNoRailIsPossible: the peer is found, but its bytes would go to a loopback address of another host, or
// leave from one.
func TestOpenSaysThatNoRailIsPossible(t *testing.T) {
	served := map[string]any{"rpc_server_hostname": "10.88.0.2"}
	for name, c := range map[string]struct {
		far, near map[string]any
		says      []string
	}{
		"the near side names loopback": {far: served,
			near: map[string]any{"transports/tcp/addresses": []string{"127.0.0.1"}},
			says: []string{"transports/tcp/addresses", "127.0.0.1", "10.88.0.2"}},
		"other families": {far: served, near: map[string]any{"transports/tcp/addresses": []string{"fd88::1"}},
			says: []string{"transports/tcp/addresses", "fd88::1", "10.88.0.2"}},
	} {
		for machines := 1; machines <= 2; machines++ {
			t.Run(name+[]string{"", " in containers", " on two machines"}[machines], func(t *testing.T) {
				h := newHosts(t, machines)
				settings := maps.Clone(c.far)
				_, address := open(t, h.startFar, settings)
				near, _ := open(t, h.startNear, c.near)
				err := near.Call("Actor.Connect", address, &forked.Nothing{})
				require.Error(t, err)
				for _, text := range c.says {
					require.ErrorContains(t, err, text)
				}
			})
		}
	}
}
