package ascend

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/ascend/acl"
)

// Settings is the branch transports/ascend_direct: each tagged field is a key. Upstream's limits are 3 ms: it takes the
// one of a transfer so, which ends long ones, and reads the other by a mistake as 3 s. Both are 3 s here, and HIXL,
// which counts in milliseconds, gets them rounded up.
type Settings struct {
	config.Rail

	TransferTimeout time.Duration `key:"transfer_timeout_ns" takes:"1..1000000000000000" unit:"ns" default:"3000000000" from:"upstream" help:"Limit of one slice. One that takes longer ends its link, which is connected anew."`
	TransferLimit   time.Duration `key:"transfer_timeout_ms" takes:"0..3600000" unit:"ms" default:"0" from:"upstream" help:"The same in milliseconds, as newer files have it; 0: transfer_timeout_ns."`
	ConnectTimeout  time.Duration `key:"connect_timeout_ns" takes:"1..1000000000000000" unit:"ns" default:"3000000000" from:"upstream" help:"Limit of one try to connect to a peer; HIXL advises 200 ms at least."`
	TrafficClass    string        `key:"rdma_tc" from:"upstream" help:"Traffic class of RDMA, given to HIXL: a multiple of 4 from 0 to 255. Empty: that of HCCL_RDMA_TC, else HIXL's own."`
	ServiceLevel    string        `key:"rdma_sl" from:"upstream" help:"Service level of RDMA, given to HIXL: 0 to 7. Empty: that of HCCL_RDMA_SL, else HIXL's own."`
	AutoConnect     string        `key:"auto_connect" from:"upstream" help:"1 lets HIXL watch its links and clean up broken ones by itself. tent connects in any case, so that an owner's fence holds."`
	Device          *int          `key:"device" takes:"-1..127" default:"-1" help:"The NPU by which bytes move; memory of others takes another way. -1: that of the thread that opens the engine, else the first."`
	Port            int           `key:"port" takes:"1..65535" default:"20000" help:"First port of HIXL; the device's ordinal times 1000 is added, and the next free one is taken."`
	Links           int           `key:"links_max" takes:"1..512" default:"512" help:"Links that are connected at once; HIXL has 512 for a device. A link that was not used for longest makes room."`
}

// portsTried bounds the search for a free port.
const portsTried = 1000

// device returns the ordinal of the NPU.
func (s *Settings) device() int {
	if *s.Device >= 0 {
		return *s.Device
	}
	return max(acl.Current(), 0)
}

// options are those of hixl::Hixl, names and values in turn.
func (s *Settings) options() (list []string) {
	for _, o := range [...][2]string{{"RdmaTrafficClass", s.TrafficClass}, {"RdmaServiceLevel", s.ServiceLevel},
		{"AutoConnect", s.AutoConnect}} {
		if o[1] != "" {
			list = append(list, o[0], o[1])
		}
	}
	return list
}

// checked returns the settings in force, or the mistake in them.
func checked(given any) (Settings, error) {
	s, err := config.Settled[Settings](given, Name)
	if err != nil {
		return s, err
	}
	s.TransferTimeout = cmp.Or(s.TransferLimit, s.TransferTimeout)
	for _, o := range [...]struct {
		key, value  string
		step, limit int
	}{{"rdma_tc", s.TrafficClass, 4, 255}, {"rdma_sl", s.ServiceLevel, 1, 7}, {"auto_connect", s.AutoConnect, 1, 1}} {
		n, err := strconv.Atoi(o.value)
		if o.value != "" && (err != nil || n < 0 || n > o.limit || n%o.step != 0) {
			return s, errs.New(errs.InvalidArgument, "ascend.settings",
				"transports/ascend_direct/%s is %q, and takes a multiple of %d from 0 to %d, or nothing", o.key,
				o.value, o.step, o.limit)
		}
	}
	return s, nil
}

// free returns a port of an address that nobody listens on now, from first on.
func free(at netip.Addr, first int) (name string, next int, err error) {
	for port := first; port < first+portsTried && port < 1<<16; port++ {
		name = net.JoinHostPort(at.String(), strconv.Itoa(port))
		l, failed := net.Listen("tcp", name)
		if failed == nil {
			return name, port + 1, l.Close()
		}
		err = failed
	}
	return "", first, fmt.Errorf("no port is free from %d on: %w", first, err)
}
