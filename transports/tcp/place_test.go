package tcp

import (
	"io/fs"
	"net/netip"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// sockets is the /sys of a machine with a NIC at each of two sockets and a veth.
func sockets() fstest.MapFS {
	root := fstest.MapFS{}
	devices := map[string]string{"ens1": "pci0/0000:01:00.0", "ens2": "pci1/0000:81:00.0", "veth0": "virtual"}
	for name, device := range devices {
		root["sys/class/net/"+name] = &fstest.MapFile{Data: []byte("../../devices/" + device + "/net/" + name),
			Mode: fs.ModeSymlink | 0o777}
		root["sys/devices/"+device+"/net/"+name+"/flags"] = &fstest.MapFile{Data: []byte("0x1003\n")}
		root["sys/devices/"+device+"/net/"+name+"/speed"] = &fstest.MapFile{Data: []byte("10000\n")}
	}
	root["sys/devices/pci0/0000:01:00.0/numa_node"] = &fstest.MapFile{Data: []byte("0\n")}
	root["sys/devices/pci1/0000:81:00.0/numa_node"] = &fstest.MapFile{Data: []byte("1\n")}
	return root
}

func TestRailsSayWhereTheirLocalEndIs(t *testing.T) {
	where := map[string]string{"127.0.0.1": "ens1", "127.0.0.2": "ens2", "127.0.0.3": "veth0", "127.0.0.4": ""}
	f := Factory{Root: sockets(), Interface: func(a netip.Addr) string { return where[a.String()] }}
	c := newCoupleOf(t, f, Settings{Addresses: []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"}}, 1<<16)
	want := []place{{"ens1", 0, 1.25e9}, {"ens2", 1, 1.25e9}, {"veth0", -1, 0}, {"", -1, 0}}
	for i, at := range want {
		r := c.rails[uint16(i)]
		require.Equal(t, at, place{r.Device, r.Node, r.Bandwidth}, r.Local)
	}

	// The first address moves to the other NIC: the rail's next generation knows it once the kernel has reported it.
	tr := c.tr.(*Transport)
	tr.places.mu.Lock()
	where["127.0.0.1"] = "ens2"
	tr.places.mu.Unlock()
	for _, step := range []struct {
		generation uint32
		forget     bool
		want       place
	}{{2, false, want[0]}, {3, true, want[1]}} {
		if step.forget {
			tr.places.forgetPlaces()
		}
		l := tr.links.Lookup(c.link)
		require.True(t, l.runOnLink(func(now clock.Time) {
			l.railDown((*l.rails.Load())[0], errs.New(errs.Lost, "test", "cut"), now)
		}))
		c.await(t, "the rail", 5*time.Second, func() bool { return c.rails[0].Rail.Generation == step.generation })
		r := c.rails[0]
		require.Equal(t, step.want, place{r.Device, r.Node, r.Bandwidth})
	}
}

func TestTheKernelKnowsWhichInterfaceHasAnAddress(t *testing.T) {
	require.Equal(t, "lo", interfaceOf(netip.MustParseAddr("127.0.0.1")))
	require.Equal(t, "lo", interfaceOf(netip.MustParseAddr("127.255.0.9")), "which it does not list")
	require.Equal(t, "eth9", interfaceOf(netip.MustParseAddr("fe80::1%eth9")))
	require.Empty(t, interfaceOf(netip.MustParseAddr("192.0.2.1")), "an address for documents")
	p := newPlaces(Factory{})
	require.Equal(t, place{"lo", -1, 0}, p.placeOf(netip.MustParseAddr("127.0.0.1")))
}
