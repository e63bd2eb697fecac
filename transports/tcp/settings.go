package tcp

import (
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// Settings is the branch transports/tcp. The zero value of a field means its default; DefaultSettings shows them.
type Settings struct {
	Addresses []string // local ends of rails, IPv4 or IPv6 without a port; default 127.0.0.1
	RailPairs string   // "matched": one rail for each local address; "all": every pair of local and remote address
	Port      int      // every address listens on it; 0 is any free port
	Lanes     int      // connections of a rail and class group
	Workers   int      // goroutines that read and write what no caller is polling

	Congestion  string        // "auto": cubic or else reno towards our own host, the system's choice otherwise; "system"; or a name
	UserTimeout time.Duration // unacknowledged bytes older than this break a lane
	DialTimeout time.Duration // of one try to bring a rail up
	Greeting    time.Duration // an accepted connection must have shown its token by then
	Lease       time.Duration // bytes that waited longer in our sockets are written only after asking their sender again
	Spin        time.Duration // a worker looks at a drained lane this long before it sleeps; 0 is the default, negative never

	SliceBytes     uint64 // largest slice
	WindowBytes    uint64 // accepted and not completed, for each lane; also proposed to the core for each rail
	CreditBytes    uint64 // READ bytes a peer may have asked for and not got, for each lane
	CreditRequests int    // slices a peer may have outstanding, for each lane; a power of two
}

// Limits of settings, and of what a peer may announce.
const (
	lanesMax    = 16
	sliceMax    = 64 << 20
	requestsMin = 64
	requestsMax = 1 << 14
)

// DefaultSettings returns the settings of an engine that was told nothing.
func DefaultSettings() Settings { return Settings{}.withDefaults() }

func (s Settings) withDefaults() Settings {
	if len(s.Addresses) == 0 {
		s.Addresses = []string{"127.0.0.1"}
	}
	if s.RailPairs == "" {
		s.RailPairs = "matched"
	}
	// Two streams keep two cores awake; more than that share them and lose (measured: 1, 2, 4, 8 streams on 2 cores).
	orInt(&s.Lanes, min(2, runtime.NumCPU()))
	orInt(&s.Workers, min(4, max(2, runtime.NumCPU())))
	if s.Congestion == "" {
		s.Congestion = "auto"
	}
	orInt(&s.CreditRequests, 1024)
	orDuration(&s.UserTimeout, 2*time.Second)
	orDuration(&s.DialTimeout, 500*time.Millisecond)
	orDuration(&s.Greeting, 2*time.Second)
	orDuration(&s.Lease, time.Second)
	orDuration(&s.Spin, 50*time.Microsecond)
	orBytes(&s.SliceBytes, 1<<20)
	orBytes(&s.WindowBytes, 8<<20)
	orBytes(&s.CreditBytes, 64<<20)
	return s
}

func orInt(v *int, other int) {
	if *v == 0 {
		*v = other
	}
}

func orDuration(v *time.Duration, other time.Duration) {
	if *v == 0 {
		*v = other
	}
}

func orBytes(v *uint64, other uint64) {
	if *v == 0 {
		*v = other
	}
}

// Validate reports the first setting that cannot be used, as an *errs.Error with the key and what it takes.
func (s Settings) Validate() error {
	s = s.withDefaults()
	if _, err := s.addresses(); err != nil {
		return err
	}
	switch {
	case s.RailPairs != "matched" && s.RailPairs != "all":
		return invalid("rail_pairs", s.RailPairs, `"matched" or "all"`)
	case s.Port < 0 || s.Port > 65535:
		return invalid("port", s.Port, "0 to 65535")
	case s.Lanes < 1 || s.Lanes > lanesMax:
		return invalid("lanes", s.Lanes, "1 to 16")
	case s.Workers < 1 || s.Workers > 64:
		return invalid("workers", s.Workers, "1 to 64")
	case s.UserTimeout < 0 || s.DialTimeout < 0 || s.Greeting < 0 || s.Lease < 0:
		return invalid("user_timeout, dial_timeout, greeting, lease", "negative", "a positive time")
	case s.SliceBytes < 4096 || s.SliceBytes > sliceMax:
		return invalid("slice_bytes", s.SliceBytes, "4 KiB to 64 MiB")
	case s.WindowBytes < s.SliceBytes:
		return invalid("window_bytes", s.WindowBytes, "at least slice_bytes")
	case s.CreditBytes < s.SliceBytes:
		return invalid("credit_bytes", s.CreditBytes, "at least slice_bytes")
	case s.CreditRequests < requestsMin || s.CreditRequests > requestsMax || s.CreditRequests&(s.CreditRequests-1) != 0:
		return invalid("credit_requests", s.CreditRequests, "a power of two from 64 to 16384")
	}
	return nil
}

func invalid(key string, value any, takes string) error {
	return errs.New(errs.InvalidArgument, "tcp.settings", "transports/tcp/%s is %v, it takes %s", key, value, takes)
}

// addresses parses the local ends. A wildcard cannot be the end of a rail: it names no path.
func (s Settings) addresses() ([]netip.Addr, error) {
	list := make([]netip.Addr, 0, len(s.Addresses))
	for _, text := range s.Addresses {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return nil, invalid("addresses", fmt.Sprintf("%q", text), "IP addresses of this host, without a port")
		case a.IsUnspecified() || a.IsMulticast():
			return nil, invalid("addresses", fmt.Sprintf("%q", text), "addresses of interfaces, one for each rail")
		}
		list = append(list, a.Unmap())
	}
	return list, nil
}
