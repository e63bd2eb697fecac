package rdma

import (
	"cmp"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/rdma/netdev"
)

// Settings is the branch transports/rdma: each tagged field is a key. The zero value of a field means its default.
// Fields without a key are for tests and for Go programs.
type Settings struct {
	config.Rail

	Devices      []string       `key:"devices" help:"Names of the devices to use, as ibv_devices lists them, in the order in which they are paired with those of the peer; empty: every device, by name."`
	Addresses    []string       `key:"addresses" help:"Addresses on which the control plane listens beside rpc_server_hostname; empty: those of the devices' network interfaces, where the engine listens beyond loopback."`
	Whitelist    []string       `key:"../../topology/rdma_whitelist" from:"upstream" help:"Names of RDMA devices to use; empty means all."`
	Blacklist    []string       `key:"../../topology/rdma_blacklist" from:"upstream" help:"Names of RDMA devices to leave alone; unused beside a whitelist."`
	Matrix       map[string]any `key:"../../topology/priority_matrix" takes:"matrix" from:"upstream" help:"RDMA devices by memory location, preferred and available, instead of distances; others are not used for that memory. \"*\" is every location without a line of its own."`
	MatrixPath   string         `key:"../../topology/custom_json_path" takes:"file" from:"upstream" help:"File with such a matrix; unused beside priority_matrix."`
	RailPath     string         `key:"workers/rail_topo_path" takes:"file" from:"upstream" help:"File with the pairs of devices that become rails: {\"all\": [{\"local\": \"mlx5_0\", \"remote\": \"mlx5_2\"}]}; empty: the i-th with the i-th."`
	Lanes        int            `key:"num_lanes" takes:"1..64" default:"4" from:"upstream" help:"Queue pairs of a rail. Where there are three or more, the first third is for the highest class alone, unless qp_pools says otherwise."`
	Port         int            `key:"device/port" takes:"1..255" default:"1" from:"upstream" help:"Port of the device."`
	GIDIndex     *int           `key:"device/gid_index" takes:"-1..65535" default:"-1" from:"upstream" help:"Index of the address in the device's table; -1 takes the first that is proved to lead to the peer, RoCE v2 before v1 and routable before link-local."`
	Bells        int            `key:"device/num_comp_channels" takes:"1..64" default:"1" from:"upstream" help:"Descriptors of a device on which its completion queues wake sleepers, in turn."`
	StoreCap     int            `key:"endpoint/endpoint_store_cap" takes:"1..16777216" default:"65536" from:"upstream" help:"Rails of a device that keep their queue pairs. A rail connects at its first use; beyond that number the one that SIEVE chooses is disconnected, never one with slices out."`
	Entries      int            `key:"device/max_cqe" takes:"64..1048576" default:"4096" from:"upstream" help:"Entries of a completion queue. A device opens more queues where its queue pairs need them."`
	Requests     int            `key:"endpoint/max_qp_wr" takes:"8..16384" default:"256" from:"upstream" help:"Work requests in flight on a queue pair."`
	Ranges       int            `key:"endpoint/max_sge" takes:"1..255" default:"4" from:"upstream" help:"Local ranges that a work request of a queue pair has room for, at most what the device can. tent's work requests have one."`
	Inline       *uint64        `key:"endpoint/max_inline_bytes" takes:"0..65536" unit:"B" default:"64" from:"upstream" help:"WRITEs of host memory up to this size travel inside their work request, as far as the device can."`
	MTU          int            `key:"endpoint/path_mtu" takes:"512..4096, a power of two" default:"4096" from:"upstream" help:"Largest packet; the smaller one of both ports if that is less."`
	PKeyIndex    int            `key:"endpoint/pkey_index" takes:"0..65535" default:"0" from:"upstream" help:"Index in the table of partition keys."`
	TrafficClass int            `key:"endpoint/traffic_class" takes:"0..255" default:"0" from:"upstream" help:"Traffic class of packets; qp_pools has others by class."`
	ServiceLevel int            `key:"endpoint/service_level" takes:"0..15" default:"0" from:"upstream" help:"Service level of packets; qp_pools has others by class."`
	HopLimit     int            `key:"endpoint/hop_limit" takes:"1..255" default:"16" from:"upstream" help:"Hop limit of packets."`
	FlowLabel    int            `key:"endpoint/flow_label" takes:"0..1048575" default:"0" from:"upstream" help:"Flow label of packets."`
	SourceBits   int            `key:"endpoint/src_path_bits" takes:"0..127" default:"0" from:"upstream" help:"Path bits of our address on InfiniBand, where a port has several."`
	StaticRate   int            `key:"endpoint/static_rate" takes:"0..255" default:"0" from:"upstream" help:"Code of the highest rate of a queue pair, as verbs has it; 0 is that of the port."`
	Reads        int            `key:"endpoint/max_rd_atomic" takes:"1..255" default:"16" from:"upstream" help:"READs under way at once on a queue pair, at most what both devices can."`
	ReadsServed  int            `key:"endpoint/max_dest_rd_atomic" takes:"1..255" default:"16" from:"upstream" help:"READs of a peer that are served at once on a queue pair, at most what both devices can."`
	RNRTimer     int            `key:"endpoint/min_rnr_timer" takes:"1..31" default:"12" from:"upstream" help:"Code of the pause that a receiver without buffers asks for."`
	Timeout      int            `key:"endpoint/send_timeout" takes:"1..31" default:"14" from:"upstream" help:"Code of the wait for an acknowledgement: 4.096 us times two to this power."`
	Retries      int            `key:"endpoint/send_retry_count" takes:"1..7" default:"6" from:"upstream" help:"Sends again after a missing acknowledgement. 7 is used as 6: some devices take 7 as without end."`
	RNRRetries   int            `key:"endpoint/send_rnr_count" takes:"1..7" default:"7" from:"upstream" help:"Sends again after a receiver without buffers; 7 is without end."`
	Pools        []any          `key:"endpoint/qp_pools" takes:"pools" from:"upstream" help:"Queue pairs of a class: name is high, medium or low, num_qp their number, service_level and traffic_class theirs, -1 for the rail's. Classes without a pool share num_lanes; pools of other names are not made."`
	Block        uint64         `key:"workers/block_size" takes:"4KiB..1GiB" unit:"B" default:"64KiB" from:"upstream" help:"Bytes of a work request; a slice has many of them."`
	Cut          uint64         `key:"registration_bytes" takes:"64KiB..1TiB" unit:"B" default:"2GiB" help:"Bytes of one registration: larger regions have several, which are pinned side by side. It grows where the descriptor of a region would be too long, which names those of each device: on eight of them beyond 2 TiB, and on one or two beyond 7.9 TiB."`
	Relaxed      *int           `key:"pci_relaxed_ordering" takes:"0..2" default:"1" from:"upstream" help:"1 and 2 register memory for relaxed ordering on the PCI bus, where library and device know it; 0 does not. WRITEs are then flushed, see write_visibility."`
	Visibility   string         `key:"write_visibility" takes:"auto|flush|acknowledged" default:"auto" help:"flush puts a READ of a few bytes of each memory behind the WRITEs of a posting, so that these are visible when they complete; auto does so with relaxed ordering; acknowledged trusts the acknowledgement."`
	DefaultRate  float64        `key:"default_bandwidth_gbps" takes:"0.001..100000" unit:"Gbit/s" default:"400" from:"upstream" help:"Rate of a port that tells none, before any was measured."`
	LeastRate    float64        `key:"min_bandwidth_gbps" takes:"0.001..100000" unit:"Gbit/s" default:"10" atmost:"max_bandwidth_gbps" from:"upstream" help:"Least rate that is taken for a port's, before any was measured."`
	MostRate     float64        `key:"max_bandwidth_gbps" takes:"0.001..100000" unit:"Gbit/s" default:"800" from:"upstream" help:"Greatest rate that is taken for a port's, before any was measured."`
	NoGPUDirect  bool           `key:"disable_gpu_direct_rdma" default:"false" from:"upstream" help:"NICs do not reach memory of GPUs directly: it goes by way of the host."`
	GDRThreshold int            `key:"gdr_error_threshold" takes:"1..1048576" default:"2" from:"upstream" help:"Errors of memory of a GPU on a NIC, inside the window, that keep the two apart."`
	GDRWindow    time.Duration  `key:"gdr_error_window_secs" takes:"0.001..86400" unit:"s" default:"10" from:"upstream" help:"Window of those errors."`
	GDRCooldown  time.Duration  `key:"gdr_cooldown_secs" takes:"0.001..86400" unit:"s" default:"30" from:"upstream" help:"First pause of a NIC and a GPU; it doubles with each further one, to 300 s at most."`
	LogSlices    bool           `key:"log_slice_affinity" default:"false" from:"upstream" help:"Logs the rail and the queue pair of each slice."`

	Library   string        // path of another libibverbs; "": as the dynamic linker finds it
	Scan      time.Duration // interval of looks for devices that came or went; 0: 2 s
	DialLimit time.Duration // a peer that says nothing for so long is reported; 0: 2 s
	Clock     time.Duration // a posted slice that was asked back is waited for so long; 0: 100 ms
	Pause     time.Duration // between the first two tries to connect a rail; it doubles; 0: 5 ms
	Keep      time.Duration // between two words of a link to its peer; 0: 1 min
	Quiet     time.Duration // a guest that says nothing for so long is looked at; 0: 10 min
	Root      fs.FS         // a file system with sys, which says where devices are; nil: that of this machine
}

// ListenAddresses implements transport.Listener.
func (s *Settings) ListenAddresses() []string { return s.Addresses }

// HomeAddresses implements transport.Homed: a peer that has lost one NIC calls by another, and its fences with it.
func (s *Settings) HomeAddresses() (list []netip.Addr) {
	if len(s.Addresses) > 0 {
		return nil
	}
	for _, device := range s.chosen(netdev.Devices(s.root())) {
		list = append(list, netdev.Addresses(netdev.Of(s.root(), device, s.Port).Interface)...)
	}
	return list
}

// flushes reports whether WRITEs are flushed.
func (s *Settings) flushes() bool {
	return s.Visibility == "flush" || s.Visibility == "auto" && *s.Relaxed != 0
}

// root is the file system with sys.
func (s *Settings) root() fs.FS {
	if s.Root != nil {
		return s.Root
	}
	return os.DirFS("/")
}

// rate is the rate in bytes/s that is expected of a port, from the one that it shows; 0 is none.
func (s *Settings) rate(shown float64) float64 {
	const perGbps = 1e9 / 8
	return min(max(cmp.Or(shown, s.DefaultRate*perGbps), s.LeastRate*perGbps), s.MostRate*perGbps)
}

// mtu is the largest packet as the interface counts: 1 is 256 bytes.
func (s *Settings) mtu() uint32 {
	code := uint32(1)
	for n := s.MTU; n > 256; n /= 2 {
		code++
	}
	return code
}

// chosen are the devices to use, in the order in which rails pair them with the peer's: as the user names them, else by
// name. The library lists a device that was deleted and made again behind the others.
func (s *Settings) chosen(names []string) []string {
	admitted := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		if len(s.Whitelist) > 0 {
			return !slices.Contains(s.Whitelist, name)
		}
		return slices.Contains(s.Blacklist, name)
	})
	if len(s.Devices) == 0 {
		return slices.SortedFunc(slices.Values(admitted), byName)
	}
	absent := func(name string) bool { return !slices.Contains(admitted, name) }
	return slices.DeleteFunc(slices.Clone(s.Devices), absent)
}

// byName orders names that end in numbers by these: mlx5_2 before mlx5_10.
func byName(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// settled completes and checks the settings that Open was given.
func settled(given any) (Settings, error) {
	s, err := config.Settled[Settings](given, Name)
	if err != nil {
		return s, err
	}
	if min(s.DialLimit, s.Clock, s.Scan, s.Pause, s.Keep, s.Quiet) < 0 {
		return s, errs.New(errs.InvalidArgument, "rdma.settings", "a limit is negative")
	}
	s.DialLimit = cmp.Or(s.DialLimit, 2*time.Second)
	s.Scan = cmp.Or(s.Scan, 2*time.Second)
	s.Clock = cmp.Or(s.Clock, 100*time.Millisecond)
	s.Pause = cmp.Or(s.Pause, 5*time.Millisecond)
	s.Keep, s.Quiet = cmp.Or(s.Keep, keepDefault), cmp.Or(s.Quiet, quietDefault)
	s.Retries = min(s.Retries, 6)
	return s, nil
}
