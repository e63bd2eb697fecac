package rdma

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/netdev"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// TestDevicesComeInAnOrderThatBothEndsShare: the library's order changes when a device is made again, and the i-th
// device here is paired with the i-th there.
func TestDevicesComeInAnOrderThatBothEndsShare(t *testing.T) {
	listed := []string{"mlx5_10", "mlx5_2", "mlx5_0", "rxe0"}
	require.Equal(t, []string{"rxe0", "mlx5_0", "mlx5_2", "mlx5_10"}, (&Settings{}).chosen(listed))
	named := &Settings{Devices: []string{"mlx5_2", "gone", "mlx5_10", "mlx5_0"}}
	require.Equal(t, []string{"mlx5_2", "mlx5_10", "mlx5_0"}, named.chosen(listed))
	require.Equal(t, []string{"mlx5_10", "mlx5_2", "mlx5_0", "rxe0"}, listed, "as it was")
}

// TestTheAddressesOfTheNICsAreListenedOn: those of the interfaces of the devices that are used, if the user names none.
func TestTheAddressesOfTheNICsAreListenedOn(t *testing.T) {
	root := fstest.MapFS{}
	for name, netdev := range map[string]string{"fake0": "lo", "fake1": "lo", "fake2": "no-such-netdev"} {
		root["sys/class/infiniband/"+name+"/ports/1/gid_attrs/ndevs/0"] = &fstest.MapFile{Data: []byte(netdev + "\n")}
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	s := given(t, map[string]any{"topology/rdma_whitelist": []string{"fake0", "fake2"}})
	s.Root = root
	require.Contains(t, s.HomeAddresses(), loopback)
	require.Len(t, s.HomeAddresses(), len(netdev.Addresses("lo")), "fake1 is not used, and fake2 has no interface")
	s.Addresses = []string{"127.0.0.7"}
	require.Empty(t, s.HomeAddresses())
	require.Equal(t, s.Addresses, s.ListenAddresses())
}

// given returns the settings of keys and values, as an engine reads them.
func given(t *testing.T, values map[string]any) Settings {
	t.Helper()
	build := config.Options{Transports: []config.Transport{{Name: Name, Settings: Settings{}}}}
	text, err := json.Marshal(values)
	require.NoError(t, err)
	c, err := config.Load(build, text)
	require.NoError(t, err)
	return *c.SettingsOf(Name).(*Settings)
}

// rigOf is a rig over two devices, with settings by their keys.
func rigOf(t *testing.T, values map[string]any) *rig {
	t.Helper()
	return newRig(t, func(s *Settings) {
		timeout, retries := s.Timeout, s.Retries
		own := given(t, values)
		own.Library, own.Clock = s.Library, s.Clock
		if _, set := values["transports/rdma/endpoint/send_timeout"]; !set {
			own.Timeout = timeout
		}
		if _, set := values["transports/rdma/endpoint/send_retry_count"]; !set {
			own.Retries = retries
		}
		*s = own
	})
}

// first is the rail of the first node over its first device.
func (r *rig) first() *rail { return r.a.Transport.(*Transport).links.Lookup(r.c.Link).rail(0) }

// pair asks the device about a queue pair of the rail.
func (r *rig) pair(t *testing.T, lane int) verbs.Attributes {
	t.Helper()
	got, err := r.first().lanes[lane].pair.Query()
	require.NoError(t, err)
	return got
}

// row is a setting with a value that is no default, and its effect.
type row struct {
	key   string
	value any
	read  func(*testing.T, *rig) any
	want  any
}

// attribute reads a value back from a queue pair.
func attribute(read func(*verbs.Attributes) any) func(*testing.T, *rig) any {
	return func(t *testing.T, r *rig) any { a := r.pair(t, 0); return read(&a) }
}

// pathRows are the settings of connections.
var pathRows = []row{
	{"device/port", 2, attribute(func(a *verbs.Attributes) any { return a.Port }), uint8(2)},
	{"device/gid_index", 0, attribute(func(a *verbs.Attributes) any { return a.SourceGID }), uint8(0)},
	{"endpoint/path_mtu", 1024, attribute(func(a *verbs.Attributes) any { return a.MTU }), uint32(3)},
	{"endpoint/pkey_index", 2, attribute(func(a *verbs.Attributes) any { return a.PKey }), uint16(2)},
	{"endpoint/traffic_class", 9, attribute(func(a *verbs.Attributes) any { return a.Traffic }), uint8(9)},
	{"endpoint/service_level", 3, attribute(func(a *verbs.Attributes) any { return a.Level }), uint8(3)},
	{"endpoint/hop_limit", 5, attribute(func(a *verbs.Attributes) any { return a.Hops }), uint8(5)},
	{"endpoint/flow_label", 77, attribute(func(a *verbs.Attributes) any { return a.Flow }), uint32(77)},
	{"endpoint/src_path_bits", 2, attribute(func(a *verbs.Attributes) any { return a.Bits }), uint8(2)},
	{"endpoint/static_rate", 6, attribute(func(a *verbs.Attributes) any { return a.Rate }), uint8(6)},
	{"endpoint/max_rd_atomic", 7, attribute(func(a *verbs.Attributes) any { return a.Reads }), uint8(7)},
	{"endpoint/max_dest_rd_atomic", 5, attribute(func(a *verbs.Attributes) any { return a.Served }), uint8(5)},
	{"endpoint/min_rnr_timer", 11, attribute(func(a *verbs.Attributes) any { return a.RNRTimer }), uint8(11)},
	{"endpoint/send_timeout", 15, attribute(func(a *verbs.Attributes) any { return a.Timeout }), uint8(15)},
	{"endpoint/send_retry_count", 7, attribute(func(a *verbs.Attributes) any { return a.Retries }), uint8(6)},
	{"endpoint/send_rnr_count", 4, attribute(func(a *verbs.Attributes) any { return a.RNRRetries }), uint8(4)},
}

// queueRows are the settings of queue pairs and completion queues.
var queueRows = []row{
	{"device/num_comp_channels", 3, func(t *testing.T, r *rig) any { return r.f.Control(t, "channels") }, 2 * 2 * 3},
	{"device/max_cqe", 300, func(_ *testing.T, r *rig) any { return r.first().device.queues()[0].queue.Entries }, 300},
	{"endpoint/max_qp_wr", 40, attribute(func(a *verbs.Attributes) any { return a.Room.Requests }), 40},
	{"endpoint/max_sge", 3, attribute(func(a *verbs.Attributes) any { return a.Room.Ranges }), 3},
	{"endpoint/max_inline_bytes", 100, attribute(func(a *verbs.Attributes) any { return a.Room.Inline }), 100},
	{"num_lanes", 3, lanes, 3},
	{"device/num_cq_list", 5, lanes, 5},
	{"endpoint/qp_mul_factor", 5, lanes, 5},
	{"workers/num_workers", 5, lanes, 5},
	{"endpoint/qp_pools", []any{map[string]any{"name": "low", "num_qp": 2, "service_level": 1, "traffic_class": 8}},
		func(t *testing.T, r *rig) any { return fmt.Sprint(r.marksOf(t, 2), r.marksOf(t, 0)) }, "{1 8} {0 0}"},
	{"endpoint/endpoint_store_cap", 1, func(_ *testing.T, r *rig) any { return r.first().device.store.most }, 1},
	{"workers/block_size", "8KiB", func(t *testing.T, r *rig) any { return r.requests(t, 64<<10) }, 8 + 1},
	{"write_visibility", "acknowledged", func(t *testing.T, r *rig) any { return r.requests(t, 64<<10) }, 1},
	{"registration_bytes", "256KiB", func(_ *testing.T, r *rig) any {
		return len(r.a.Transport.(*Transport).regions.Lookup(r.local.Key).keys.Load().local[0].parts)
	}, rigSize >> 18},
	{"pci_relaxed_ordering", 0, func(t *testing.T, r *rig) any { return r.f.Control(t, "relaxed") }, 0},
}

// deviceRows are the settings of devices and rails.
func deviceRows(t *testing.T) []row {
	preferred := map[string]any{"*": [][]string{{"fake1"}, {"fake0"}}}
	crossed := map[string]any{"all": []railPair{{"fake0", "fake1"}, {"fake1", "fake0"}}}
	return []row{
		{"addresses", []string{"127.0.0.7"}, func(_ *testing.T, r *rig) any {
			return (&r.a.Transport.(*Transport).settings).ListenAddresses()
		}, []string{"127.0.0.7"}},
		{"devices", []string{"fake1"}, devices, "fake1"},
		{"../../topology/rdma_whitelist", []string{"fake1", "other"}, devices, "fake1"},
		{"../../topology/rdma_blacklist", []string{"fake1"}, devices, "fake0"},
		{"../../topology/priority_matrix", preferred, near, "0 [1 0]"},
		{"../../topology/custom_json_path", written(t, preferred), near, "0 [1 0]"},
		{"workers/rail_topo_path", written(t, crossed), rails, "fake0>fake1 fake1>fake0"},
	}
}

// otherRows are the settings of rates, of memory of devices, and of the log.
var otherRows = []row{
	{"default_bandwidth_gbps", 700, func(_ *testing.T, r *rig) any {
		return r.a.Transport.(*Transport).settings.rate(0)
	}, 87.5e9},
	{"min_bandwidth_gbps", 200, rate, 25e9},
	{"max_bandwidth_gbps", 50, rate, 6.25e9},
	{"disable_gpu_direct_rdma", true, func(t *testing.T, r *rig) any {
		_, _, err := r.a.Transport.Register(t.Context(), newBuffer(t).region())
		return errs.CodeOf(err)
	}, errs.NotHere},
	{"gdr_error_threshold", 3, func(t *testing.T, r *rig) any { return r.strikes(t, time.Millisecond) }, 3},
	{"gdr_error_window_secs", 0.001, func(t *testing.T, r *rig) any { return r.strikes(t, time.Second) }, 10},
	{"gdr_cooldown_secs", 0.5, func(t *testing.T, r *rig) any {
		s, key := &r.a.Transport.(*Transport).settings, reachKey{nic: 1}
		table := reachTable{}
		for !table.struck(key, s, clock.Now()) {
		}
		return table.pairs[key].until.Sub(table.pairs[key].first).Round(100 * time.Millisecond)
	}, 500 * time.Millisecond},
	{"log_slice_affinity", true, func(t *testing.T, r *rig) any {
		r.works(t)
		return strings.Contains(r.log.String(), "rdma: slice")
	}, true},
}

func lanes(_ *testing.T, r *rig) any { return len(r.first().lanes) }
func rate(_ *testing.T, r *rig) any  { return r.first().device.rate }

func devices(_ *testing.T, r *rig) any {
	var names []string
	for _, d := range r.a.Transport.(*Transport).nics() {
		names = append(names, d.name)
	}
	return strings.Join(names, " ")
}

func near(t *testing.T, r *rig) any {
	match, err := r.a.Transport.(*Transport).Match(r.c.Link, r.local.Key, r.remote.Key)
	require.NoError(t, err)
	return fmt.Sprint(match.Rails, match.Near[:2])
}

func rails(_ *testing.T, r *rig) any {
	var names []string
	for _, each := range r.a.Transport.(*Transport).links.Lookup(r.c.Link).list() {
		names = append(names, each.name())
	}
	return strings.Join(names, " ")
}

// TestEverySettingHasItsEffect reads each key of the rows back from a queue pair, or counts its effect on the fake. A
// key of the struct without a row fails.
func TestEverySettingHasItsEffect(t *testing.T) {
	table := slices.Concat(pathRows, queueRows, deviceRows(t), otherRows)
	done := map[string]bool{}
	for _, row := range table {
		key := filepath.Join("transports/rdma", row.key)
		done[key] = true
		t.Run(row.key, func(t *testing.T) {
			r := rigOf(t, map[string]any{key: row.value})
			require.Equal(t, row.want, row.read(t, r))
			r.works(t)
		})
	}
	c, err := config.Load(config.Options{Transports: []config.Transport{{Name: Name, Settings: Settings{}}}})
	require.NoError(t, err)
	var inactive []string
	for _, e := range c.Dump() {
		switch {
		case !strings.HasPrefix(e.Key, "transports/rdma/") && !strings.HasPrefix(e.Key, "topology/"):
		case !e.Active:
			inactive = append(inactive, e.Key)
		case !done[e.Key] && !ofTheCore(e.Key):
			t.Errorf("%s has no row", e.Key)
		}
	}
	require.LessOrEqual(t, len(inactive), 12, "%q", inactive)
}

// strikes counts the errors, some time apart, after which a pair of NIC and memory is apart; 10 means never.
func (r *rig) strikes(t *testing.T, between time.Duration) int {
	var table reachTable
	now := clock.Now()
	for n := 1; n < 10; n++ {
		if table.struck(reachKey{}, &r.a.Transport.(*Transport).settings, now) {
			require.True(t, table.apart(reachKey{}, now))
			return n
		}
		now = now.Add(between)
	}
	return 10
}

// ofTheCore reports a key that the core reads and tests for all transports.
func ofTheCore(key string) bool {
	name := strings.TrimPrefix(key, "transports/rdma/")
	if name == "enable" || name == "required" {
		return true
	}
	c, err := config.Load(config.Options{Transports: config.WithRails("rails")})
	same := func(e config.Entry) bool { return e.Key == "transports/rails/"+name }
	return err == nil && slices.ContainsFunc(c.Dump(), same)
}

// written is the path of a file with a value as JSON.
func written(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "file.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// requests moves bytes in one slice, and returns the number of work requests.
func (r *rig) requests(t *testing.T, bytes uint64) int {
	before := r.f.Control(t, "requests")
	r.c.Must(t, r.slice(t, r.c.Rail(t), 0, bytes))
	return r.f.Control(t, "requests") - before
}

// marksOf moves a slice of a class, and returns the marks of the queue pair that carried it, at both ends.
func (r *rig) marksOf(t *testing.T, class uint8) marks {
	t.Helper()
	rail := r.first()
	before := make([]uint32, len(rail.lanes))
	for i, l := range rail.lanes {
		before[i] = l.head
	}
	s := r.slice(t, r.c.Rails()[0], 0, 4096)
	s.Class = class
	r.c.Must(t, s)
	for i, l := range rail.lanes {
		if l.head == before[i] {
			continue
		}
		own, err := l.pair.Query()
		require.NoError(t, err)
		for _, g := range r.b.Transport.(*Transport).guests.all(transport.ID{}) {
			far, err := g.rails[0].lanes[uint8(i)].pair.Query()
			require.NoError(t, err)
			require.Equal(t, marks{own.Level, own.Traffic}, marks{far.Level, far.Traffic}, "answers are marked alike")
		}
		return marks{own.Level, own.Traffic}
	}
	require.FailNow(t, "no queue pair has moved")
	return marks{}
}

// TestASliceIsOneChain counts crossings and work requests.
func TestASliceIsOneChain(t *testing.T) {
	r := newRig(t, nil)
	posts := r.f.Control(t, "posts")
	require.Equal(t, 10+1, r.requests(t, 10*64<<10), "ten blocks of 64 KiB, and a flush")
	require.Equal(t, 1, r.f.Control(t, "posts")-posts, "in one crossing")
}

// TestSmallWritesTravelInsideTheirRequest: up to max_inline_bytes, and READs and larger WRITEs do not.
func TestSmallWritesTravelInsideTheirRequest(t *testing.T) {
	r := rigOf(t, map[string]any{"transports/rdma/endpoint/max_inline_bytes": 100})
	for _, bytes := range []uint64{1, 100, 101} {
		r.c.Must(t, r.slice(t, r.c.Rail(t), 0, bytes))
	}
	r.c.Must(t, r.c.Slice(transport.Read, r.c.Rail(t), r.local, 0, r.remote, 0, 8))
	require.Equal(t, 2, r.f.Control(t, "inlined"))
	require.NoError(t, r.remote.Check(moved, 0, 0, 101))
	off := rigOf(t, map[string]any{"transports/rdma/endpoint/max_inline_bytes": 0})
	off.c.Must(t, off.slice(t, off.c.Rail(t), 0, 1))
	require.Zero(t, off.f.Control(t, "inlined"))
}

// TestPoolsShareTheLanesOut holds the table of lanePlan.
func TestPoolsShareTheLanesOut(t *testing.T) {
	of := func(s Settings) [3]group {
		p, _, err := s.plan()
		require.NoError(t, err)
		return p.of
	}
	entry := func(name string, n int) any { return map[string]any{"name": name, "num_qp": n} }
	require.Equal(t, [3]group{{0, 2}, {0, 2}, {0, 2}}, of(Settings{Lanes: 2}))
	require.Equal(t, [3]group{{0, 1}, {1, 3}, {1, 3}}, of(Settings{Lanes: 4}))
	require.Equal(t, [3]group{{0, 5}, {5, 4}, {5, 4}}, of(Settings{Lanes: 4, Pools: []any{entry("high", 5)}}))
	all := []any{entry("low", 1), entry("high", 2), entry("medium", 3)}
	require.Equal(t, [3]group{{1, 2}, {3, 3}, {0, 1}}, of(Settings{Lanes: 4, Pools: all}))
	_, unknown, err := (&Settings{Lanes: 4, Pools: []any{entry("gold", 2)}}).plan()
	require.NoError(t, err)
	require.Equal(t, []string{"gold"}, unknown)
	for _, wrong := range [][]any{{entry("high", 2), entry("high", 2)}, {entry("high", 61)}} {
		_, _, err := (&Settings{Lanes: 4, Pools: wrong}).plan()
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	}
}

// TestAFileOfTopologyThatIsNoneIsRefused with its name and its key.
func TestAFileOfTopologyThatIsNoneIsRefused(t *testing.T) {
	for key, s := range map[string]Settings{
		"topology/custom_json_path": {MatrixPath: written(t, []int{1})},
		"rail_topo_path":            {RailPath: t.TempDir()},
		"custom_json_path":          {MatrixPath: "/nowhere/file.json"},
	} {
		_, failed := s.nearness()
		if s.RailPath != "" {
			_, failed = s.railPairs()
		}
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(failed))
		require.ErrorContains(t, failed, key)
		require.ErrorContains(t, failed, s.MatrixPath+s.RailPath)
	}
}

// TestAMatrixKeepsMemoryAwayFromOtherDevices: a device that is on no list of a location is not used for it.
func TestAMatrixKeepsMemoryAwayFromOtherDevices(t *testing.T) {
	m := matrix{"cpu:0": {{"a"}, {"b"}}, anywhere: {{"c"}, nil}}
	for _, row := range []struct {
		location mem.Location
		device   string
		rank     uint8
		used     bool
	}{{"cpu:0", "a", transport.Nearest, true}, {"cpu:0", "b", transport.Far, true},
		{"cpu:0", "c", transport.Farthest, false}, {"cpu:1", "c", transport.Nearest, true},
		{"cpu:1", "a", transport.Farthest, false}} {
		rank, used := m.rank(row.location, row.device)
		require.Equal(t, []any{row.rank, row.used}, []any{rank, used}, "%+v", row)
	}
	r := rigOf(t, map[string]any{"topology/priority_matrix": map[string]any{"*": [][]string{{"fake1"}, {}}}})
	match, err := r.a.Transport.(*Transport).Match(r.c.Link, r.local.Key, r.remote.Key)
	require.NoError(t, err)
	require.EqualValues(t, 2, match.Rails&3)
	require.Contains(t, match.Why, "fake0")
}

func overOne(s *Settings) { s.Devices = []string{"fake0"} }

// TestTheAddressThatLeadsIsUsed: of four addresses, some lead nowhere. The first one that is proved is used, RoCE v2
// before v1, and routable before link-local.
func TestTheAddressThatLeadsIsUsed(t *testing.T) {
	for walled, want := range map[int]uint8{0b0000: 1, 0b0010: 2, 0b0110: 0, 0b0111: 3} {
		t.Run(fmt.Sprintf("%04b", walled), func(t *testing.T) {
			r := newRig(t, func(s *Settings) {
				overOne(s)
				s.Lanes = 2 // one of them is proved, and slices take either
			}, "gids 4", fmt.Sprintf("wall fake0 %d", walled))
			require.Equal(t, want, r.pair(t, 0).SourceGID)
			r.works(t)
			require.Empty(t, r.downs.all(), "no rail was up by an address that led nowhere")
		})
	}
}

// TestAnAddressThatLeadsNoMoreIsChanged while slices are sent.
func TestAnAddressThatLeadsNoMoreIsChanged(t *testing.T) {
	r := newRig(t, overOne, "gids 4")
	require.EqualValues(t, 1, r.pair(t, 0).SourceGID)
	r.f.Control(t, "wall fake0 %d", 0b0010)
	r.works(t)
	require.EqualValues(t, 2, r.pair(t, 0).SourceGID)
	r.f.Control(t, "wall fake0 0")
	r.works(t)
	require.EqualValues(t, 2, r.pair(t, 0).SourceGID, "one that leads is kept")
}
