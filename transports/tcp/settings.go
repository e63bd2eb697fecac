package tcp

import (
	"net/netip"
	"runtime"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
)

// Settings is the branch transports/tcp: each tagged field is a key. The zero value of a field means its default.
// Fields without a key are for tests and for Go programs.
type Settings struct {
	config.Rail

	Addresses   []string      `key:"addresses" takes:"addresses" help:"Local ends of rails, and where data is accepted. Empty: data is accepted where rpc_server_hostname leads, and rails to a peer of another network leave by the address from which the route starts. Peers hear of the first 32."`
	RailPairs   string        `key:"rail_pairs" takes:"matched|all" default:"matched" help:"Rails towards a peer: pairs in one subnet, else the i-th with the i-th; or every pair."`
	Port        int           `key:"port" takes:"port" default:"0" help:"Port that accepts data on every address; 0 takes a free one."`
	Lanes       int           `key:"lanes" takes:"1..16" default:"= one a processor, at most 2" help:"Connections of a rail for class 0, and as many for the other classes, which have one until they move much."`
	Congestion  string        `key:"congestion" takes:"name" default:"auto" help:"Congestion control by the kernel's name; auto chooses cubic or reno for peers on this host and the system's for others, system keeps the system's."`
	UserTimeout time.Duration `key:"user_timeout_ms" takes:"1..3600000" unit:"ms" default:"2000" help:"TCP_USER_TIMEOUT: sent bytes that stay without acknowledgement for longer end the connection. A destination of which pages come from slow storage needs more: the kernel acknowledges nothing while it waits for one."`
	DialTimeout time.Duration `key:"dial_timeout_ms" takes:"1..3600000" unit:"ms" default:"500" help:"Limit of one try to bring a rail up."`
	Lease       time.Duration `key:"lease_ms" takes:"1..3600000" unit:"ms" default:"1000" help:"A receiver that was stopped for longer asks the sender before it writes the bytes that its sockets hold."`
	SliceBytes  uint64        `key:"slice_bytes" takes:"4KiB..64MiB" unit:"B" default:"1MiB" atmost:"window_bytes credit_bytes" help:"Most bytes of a slice."`
	WindowBytes uint64        `key:"window_bytes" takes:"4KiB..1GiB" unit:"B" default:"8MiB" help:"Bytes in flight on a lane, and proposed to the core for each rail."`
	CreditBytes uint64        `key:"credit_bytes" takes:"4KiB..1GiB" unit:"B" default:"64MiB" help:"Bytes of READs that a peer may have asked for on a lane and not received."`

	CreditRequests int `key:"credit_requests" takes:"64..16384, a power of two" default:"1024" help:"Slices that a peer may have outstanding on a lane."`

	LanesPerPeer int `key:"lanes_per_peer" takes:"8..65536" default:"256" help:"Connections that one peer may have open here. All peers together may have a quarter of the process's descriptors (RLIMIT_NOFILE)."`

	BusyPoll time.Duration `key:"busy_poll_us" takes:"0..1000000" unit:"us" default:"0" help:"A worker of a responder looks at a lane for this long behind each short burst before it sleeps. The limit keeps half of the processors at most, and one worker always sleeps for the other lanes. 0: up to 50 us, while that pays."`

	Workers  int           // goroutines for the lanes that no caller is polling, 1 to 64; 0: one a processor, 2 to 4
	Greeting time.Duration // an accepted connection must have proved itself by then; 0: 2 s
	Spin     time.Duration // a worker looks at a drained lane this long before it sleeps; 0: 50 us, negative: never
}

// Limits of a peer's announcements, as of our own settings.
const (
	lanesMax    = 16
	sliceMax    = 64 << 20
	requestsMin = 64
	requestsMax = 1 << 14
)

// Compute fills in the defaults that depend on the machine. Two streams keep two cores awake; more than that share them
// and lose (measured: 1, 2, 4, 8 streams on 2 cores).
func (s *Settings) Compute() { s.Lanes = min(2, runtime.NumCPU()) }

// ListenAddresses are where peers reach this transport, see transport.Listener.
func (s *Settings) ListenAddresses() []string { return s.Addresses }

// settled completes and checks the settings that Open was given.
func settled(given any) (Settings, error) {
	s, err := config.Settled[Settings](given, Name)
	if err != nil {
		return s, err
	}
	switch {
	case s.Workers < 0 || s.Workers > 64:
		return s, errs.New(errs.InvalidArgument, "tcp.settings", "Workers is %d, it takes 1 to 64", s.Workers)
	case s.Greeting < 0:
		return s, errs.New(errs.InvalidArgument, "tcp.settings", "Greeting is %v, it takes a positive time", s.Greeting)
	case s.Workers == 0:
		s.Workers = min(4, max(2, runtime.NumCPU()))
	}
	if s.Greeting == 0 {
		s.Greeting = 2 * time.Second
	}
	if s.Spin == 0 {
		s.Spin = 50 * time.Microsecond
	}
	return s, nil
}

// ends parses the local ends of rails. Where none are named they are those at which peers reach the engine.
func (s *Settings) ends(engine []netip.Addr) ([]netip.Addr, error) {
	if len(s.Addresses) == 0 && len(engine) > 0 {
		return engine, nil
	}
	if len(s.Addresses) == 0 {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
	list := make([]netip.Addr, len(s.Addresses))
	for i, text := range s.Addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, errs.Wrap(errs.InvalidArgument, "tcp.settings", err)
		}
		list[i] = a.Unmap()
	}
	return list, nil
}
