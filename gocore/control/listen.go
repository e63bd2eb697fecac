package control

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/tent-engine/tent/gocore/errs"
)

// portTries bounds the search for a port that is free on every address.
const portTries = 64

// bind listens on every address. Port 0 becomes one port that is the same on all of them. The addresses come back with
// their ports. Go sets SO_REUSEADDR on listeners, so a restarted process gets its old port although connections of its
// predecessor linger; multipath TCP, Go's default for listeners, is turned off: it only slows a handful of small calls.
func bind(addresses []string) (listeners []net.Listener, bound []string, err error) {
	wanted, err := parseListen(addresses)
	if err != nil {
		return nil, nil, err
	}
	for range portTries {
		listeners, bound, err = bindOnce(wanted)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || !slices.ContainsFunc(wanted, anyPort) {
			break
		}
	}
	return listeners, bound, err
}

type endpoint struct{ host, port string }

func anyPort(e endpoint) bool { return e.port == "0" }

func parseListen(addresses []string) ([]endpoint, error) {
	if len(addresses) == 0 {
		addresses = []string{"127.0.0.1:0"}
	}
	var wanted []endpoint
	for _, address := range addresses {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, errs.Wrap(errs.InvalidArgument, "listen", err).
				WithHint(`an address to listen on is "host:port", for example "127.0.0.1:0" or "[::1]:0"`)
		}
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "listen", "%q is not a port from 0 to 65535", port)
		}
		wanted = append(wanted, endpoint{host, strconv.FormatUint(number, 10)})
	}
	return withoutCovered(wanted), nil
}

// withoutCovered drops repetitions, and addresses that a wildcard on the same port listens on already.
func withoutCovered(wanted []endpoint) []endpoint {
	var out []endpoint
	for _, e := range wanted {
		if slices.Contains(out, e) {
			continue
		}
		if slices.ContainsFunc(wanted, func(w endpoint) bool {
			return w != e && w.port == e.port &&
				covers(w.host, e.host)
		}) {
			continue
		}
		out = append(out, e)
	}
	return out
}

// covers reports whether listening on the wildcard includes host. "" and "::" take both families on Linux.
func covers(wildcard, host string) bool {
	switch wildcard {
	case "::":
		return true
	case "":
		return host != "::"
	case "0.0.0.0":
		address, err := netip.ParseAddr(host)
		return err == nil && address.Is4()
	}
	return false
}

// bindBesides listens on further addresses, by the port of the first one. An address that cannot be bound, or that a
// wildcard covers, is left out.
func bindBesides(besides []netip.Addr, listeners []net.Listener, bound []string) ([]net.Listener, []string) {
	_, port, _ := net.SplitHostPort(bound[0]) // bind made it
	for _, address := range besides {
		host := address.WithZone("").String()
		if slices.ContainsFunc(bound, func(b string) bool {
			own, at, _ := net.SplitHostPort(b)
			return at == port && (own == host || covers(own, host))
		}) {
			continue
		}
		if more, added, err := bindOnce([]endpoint{{host, port}}); err == nil {
			listeners, bound = append(listeners, more...), append(bound, added...)
		}
	}
	return listeners, bound
}

func bindOnce(wanted []endpoint) (listeners []net.Listener, bound []string, err error) {
	config := net.ListenConfig{KeepAlive: -1} // gRPC asks for signs of life itself
	config.SetMultipathTCP(false)
	chosen := "0"
	for _, e := range wanted {
		port := e.port
		if port == "0" {
			port = chosen
		}
		listener, err := config.Listen(context.Background(), "tcp", net.JoinHostPort(e.host, port))
		if err != nil {
			for _, each := range listeners {
				each.Close()
			}
			return nil, nil, listenError(net.JoinHostPort(e.host, port), err)
		}
		actual := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
		if e.port == "0" {
			chosen = actual
		}
		listeners = append(listeners, listener)
		bound = append(bound, net.JoinHostPort(e.host, actual))
	}
	return listeners, bound, nil
}

func listenError(address string, err error) error {
	e := errs.Wrap(errs.RpcServiceError, "listen", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	var unknown *net.DNSError
	switch {
	case errors.As(err, &unknown):
		e.Code, e.Cause = errs.InvalidArgument, "the host of "+address+" is unknown"
		e.WithHint("set rpc_server_hostname to a name or an address of this machine")
	case errors.Is(err, syscall.EADDRINUSE):
		e.Cause = address + " is in use by another process"
		e.WithHint("set rpc_server_port to another port, or to 0 for any that is free")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Code, e.Cause = errs.InvalidArgument, address+" is not an address of this machine"
		e.WithHint("set rpc_server_hostname, and the addresses of a transport, such as transports/tcp/addresses, to " +
			"some of its own: `ip address` lists them")
	case errors.Is(err, syscall.EACCES):
		e.Code, e.Cause = errs.PermissionDenied, "this user may not listen on "+address
		e.WithHint("set rpc_server_port to a port from 1024, or to 0")
	}
	return e
}
