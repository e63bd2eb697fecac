package tests

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
	"github.com/tent-engine/tent/transports/tcp"
)

// sockets are worlds with a rail on each of the NUMA nodes 1 and 2; the only node of a machine, 0, would not matter.
// They are simulated, and tcp's over two addresses of loopback, of which a file system says that they are NICs of two
// sockets.
func sockets() map[string]func(t *testing.T, settings map[string]any) *engine.Engine {
	root := fstest.MapFS{}
	for i, name := range []string{"ens0", "ens1"} {
		device := fmt.Sprintf("devices/pci0000:0%d/0000:0%d:00.0", i, i)
		root["sys/class/net/"+name] = &fstest.MapFile{Data: []byte("../../" + device + "/net/" + name),
			Mode: fs.ModeSymlink | 0o777}
		root["sys/"+device+"/net/"+name+"/flags"] = &fstest.MapFile{Data: []byte("0x1003\n")}
		root["sys/"+device+"/numa_node"] = &fstest.MapFile{Data: fmt.Appendln(nil, i+1)}
	}
	network := sim.NewInline(1)
	return map[string]func(*testing.T, map[string]any) *engine.Engine{
		"sim": func(t *testing.T, settings map[string]any) *engine.Engine {
			settings["fence_timeout_host_ms"] = 20_000
			return open(t, settings, []string{"sim"}, func() []engine.Plug {
				return []engine.Plug{{Factory: sim.Factory{Settings: sim.Settings{Network: network, Rails: 2,
					Nodes: []int{1, 2}}}}}
			})
		},
		"tcp": func(t *testing.T, settings map[string]any) *engine.Engine {
			f := tcp.Factory{Root: root, Interface: func(a netip.Addr) string {
				return fmt.Sprint("ens",
					a.As4()[3]-1)
			}}
			return open(t, settings, []string{"tcp"}, func() []engine.Plug {
				return []engine.Plug{{Factory: f, Settings: tcp.Settings{Addresses: []string{"127.0.0.1",
					"127.0.0.2"}}}}
			})
		},
	}
}

// carried returns the bytes that each of two rails has delivered, in the order of their local ends, once both are up.
func carried(e *engine.Engine) (bytes [2]float64, both bool) {
	found := 0
	for key, value := range e.Metrics() {
		_, local, is := strings.Cut(key, `local="`)
		if local, _, _ = strings.Cut(local, `"`); is && strings.HasPrefix(key, "tent_rail_bytes_total") {
			found++
			if strings.HasSuffix(local, "#1") || local == "127.0.0.2" {
				bytes[1] = value
			} else {
				bytes[0] = value
			}
		}
	}
	return bytes, found == 2
}

// farAway are factors that no prediction outweighs. A rail that a busy machine has slowed down to a fifth would lose to
// the usual ones, as it should.
var farAway = []float64{1, 1e6, 1e6}

func TestTheRailOfTheMemorysNodeCarries(t *testing.T) {
	for name, open := range sockets() {
		for own := range 2 {
			for key, alone := range map[string]any{"": nil, "allow_cross_numa": false, "strict_local_numa": true} {
				t.Run(fmt.Sprintf("%s, node %d, %s", name, own+1, key), func(t *testing.T) {
					settings := map[string]any{"transports/" + name + "/numa_penalties": farAway,
						"rail_suspect_ms": 900}
					size := 64 << 10
					if key != "" {
						settings["transports/"+name+"/"+key] = alone
						size = 16 << 20 // more than a rail has room for
					}
					here, there := open(t, settings), open(t, map[string]any{})
					source, destination := memory(t, size), newGuarded(t, size)
					fill(source, own)
					_, err := here.Register(engine.Memory{Addr: address(source), Size: uint64(size),
						Location: mem.Location(fmt.Sprint("cpu:", own+1))})
					require.NoError(t, err)
					offer(t, there, destination.bytes, "kv")
					s := segment(t, here, there, "kv")
					move := func() {
						id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write},
							Source: address(source),
							Length: uint64(size), Remote: engine.Remote{Segment: s}})
						require.NoError(t, err)
						require.Equal(t, dispatch.Completed, ended(t, here, id).State)
					}
					var before [2]float64
					for i, both := 0, false; !both; before, both = carried(here) {
						require.Less(t, i, 1000, "the rails do not come up")
						i++
						move()
					}
					for range 4 {
						move()
					}
					same(t, destination.bytes, own, 0)
					destination.check(t)
					bytes, _ := carried(here)
					require.EqualValues(t, 4*size, bytes[own]-before[own])
					require.Equal(t, before[1-own], bytes[1-own], "the other node's rail")
				})
			}
		}
	}
}
