package rdma

import (
	"cmp"
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
)

// Settings is the branch transports/rdma: each tagged field is a key. The zero value of a field means its default.
// Fields without a key are for tests and for Go programs.
type Settings struct {
	config.Rail

	Devices      []string `key:"devices" help:"Names of the devices to use, as ibv_devices lists them, in the order in which they are paired with those of the peer; empty: every device, by name."`
	Lanes        int      `key:"num_lanes" takes:"1..64" default:"4" from:"upstream" help:"Queue pairs of a rail. Where there are three or more, the first third is for the highest class alone."`
	Port         int      `key:"device/port" takes:"1..255" default:"1" from:"upstream" help:"Port of the device."`
	StoreCap     int      `key:"endpoint/endpoint_store_cap" takes:"1..16777216" default:"65536" from:"upstream" help:"Rails of a device that keep their queue pairs. A rail connects at its first use; beyond that number the one that SIEVE chooses is disconnected, never one with slices out."`
	Entries      int      `key:"device/max_cqe" takes:"64..1048576" default:"4096" from:"upstream" help:"Entries of a completion queue. A device opens more queues where its queue pairs need them."`
	Requests     int      `key:"endpoint/max_qp_wr" takes:"8..16384" default:"256" from:"upstream" help:"Work requests in flight on a queue pair."`
	MTU          int      `key:"endpoint/path_mtu" takes:"512..4096, a power of two" default:"4096" from:"upstream" help:"Largest packet; the smaller one of both ports if that is less."`
	PKeyIndex    int      `key:"endpoint/pkey_index" takes:"0..65535" default:"0" from:"upstream" help:"Index in the table of partition keys."`
	TrafficClass int      `key:"endpoint/traffic_class" takes:"0..255" default:"0" from:"upstream" help:"Traffic class of packets."`
	ServiceLevel int      `key:"endpoint/service_level" takes:"0..15" default:"0" from:"upstream" help:"Service level of packets."`
	HopLimit     int      `key:"endpoint/hop_limit" takes:"1..255" default:"16" from:"upstream" help:"Hop limit of packets."`
	Reads        int      `key:"endpoint/max_rd_atomic" takes:"1..255" default:"16" from:"upstream" help:"READs under way at once on a queue pair, at most what both devices can."`
	RNRTimer     int      `key:"endpoint/min_rnr_timer" takes:"1..31" default:"12" from:"upstream" help:"Code of the pause that a receiver without buffers asks for."`
	Timeout      int      `key:"endpoint/send_timeout" takes:"1..31" default:"14" from:"upstream" help:"Code of the wait for an acknowledgement: 4.096 us times two to this power."`
	Retries      int      `key:"endpoint/send_retry_count" takes:"1..7" default:"6" from:"upstream" help:"Sends again after a missing acknowledgement. 7 is used as 6: some devices take 7 as without end."`
	RNRRetries   int      `key:"endpoint/send_rnr_count" takes:"1..7" default:"7" from:"upstream" help:"Sends again after a receiver without buffers; 7 is without end."`
	Block        uint64   `key:"workers/block_size" takes:"4KiB..1GiB" unit:"B" default:"64KiB" from:"upstream" help:"Bytes of a work request; a slice has many of them."`
	Relaxed      string   `key:"relaxed_ordering" takes:"on|off" default:"on" help:"Registers memory for relaxed ordering on the PCI bus, where the library knows it. WRITEs are then flushed, see write_visibility."`
	Visibility   string   `key:"write_visibility" takes:"auto|flush|acknowledged" default:"auto" help:"flush puts a READ of a few bytes behind the WRITEs of a posting, so that these are visible when they complete; auto does so with relaxed ordering; acknowledged trusts the acknowledgement."`

	GIDIndex  int           // index of the address plus one; 0 chooses
	Library   string        // path of another libibverbs; "": as the dynamic linker finds it
	Scan      time.Duration // interval of looks for devices that came or went; 0: 2 s
	DialLimit time.Duration // a peer that says nothing for so long is reported; 0: 2 s
	Clock     time.Duration // a posted slice that was asked back is waited for so long; 0: 100 ms
}

// flushes reports whether WRITEs are flushed.
func (s *Settings) flushes() bool {
	return s.Visibility == "flush" || s.Visibility == "auto" && s.Relaxed == "on"
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
	if len(s.Devices) == 0 {
		return slices.SortedFunc(slices.Values(names), byName)
	}
	return slices.DeleteFunc(slices.Clone(s.Devices), func(name string) bool { return !slices.Contains(names, name) })
}

// byName orders names that end in numbers by these: mlx5_2 before mlx5_10.
func byName(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// settled completes and checks the settings that Open was given.
func settled(given any) (Settings, error) {
	s, err := config.Settled[Settings](given, Name)
	if err != nil {
		return s, err
	}
	if s.DialLimit < 0 || s.Clock < 0 || s.Scan < 0 {
		return s, errs.New(errs.InvalidArgument, "rdma.settings", "a limit is negative")
	}
	if s.DialLimit == 0 {
		s.DialLimit = 2 * time.Second
	}
	if s.Scan == 0 {
		s.Scan = 2 * time.Second
	}
	if s.Clock == 0 {
		s.Clock = 100 * time.Millisecond
	}
	s.Retries = min(s.Retries, 6)
	return s, nil
}
