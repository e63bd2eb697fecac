package meta

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/nic"
)

// Host is where an engine listens, and by which name peers reach it.
type Host struct {
	Bind netip.Addr // the control plane's address; may be unspecified, which is every address of its family
	Data netip.Addr // the address for data where a transport was given none; never unspecified
	Name string     // the host of Engine.address: as the settings say it, or an address
}

// Lookups are the questions of FindHost to the machine; ThisMachine answers from the kernel and its resolver.
type Lookups struct {
	Lookup    func(host string) ([]netip.Addr, error)
	Interface func(name string) (addresses []netip.Addr, found bool)
	Own       func(netip.Addr) bool                             // is it an address of this machine
	Source    func(to netip.Addr) (from netip.Addr, found bool) // where the route to an address starts
}

// lookupLimit bounds the resolution of our own name.
const lookupLimit = 5 * time.Second

// ThisMachine is the network namespace of this process.
func ThisMachine() Lookups {
	return Lookups{Lookup: lookup, Interface: addressesOf, Own: isOwn, Source: nic.RouteSource}
}

// FindHost reads rpc_server_hostname: an address, a name, an interface ("eth0"), a wildcard ("0.0.0.0", "::"), or
// nothing, which is loopback. The engine calls itself by advertised where that is set. Behind a wildcard it is the
// address from which the default route starts, as that is the one that other hosts most likely reach.
//
// Errors: InvalidArgument, naming the setting, for a name that leads to no address of this machine, and for an
// advertised one that no address can have.
func FindHost(hostname, advertised string, n Lookups) (Host, error) {
	hostname, advertised = strings.Trim(hostname, "[]"), strings.Trim(advertised, "[]")
	if hostname == "" {
		hostname = "127.0.0.1"
	}
	h := Host{Name: hostname}
	literal, err := netip.ParseAddr(hostname)
	switch {
	case err == nil && literal.IsUnspecified():
		h.Bind = literal
		if h.Data, err = behindWildcard(literal, advertised, n); err != nil {
			return h, err
		}
		h.Name = h.Data.String()
	case err == nil:
		h.Bind, h.Data = literal.Unmap(), literal.Unmap()
	default:
		if h.Bind, err = n.named(hostname); err != nil {
			return h, err
		}
		h.Data = h.Bind
		if _, is := n.Interface(hostname); is {
			h.Name = h.Bind.String()
		}
	}
	if isGroup(h.Bind) {
		return h, errs.New(errs.InvalidArgument, "listen", "rpc_server_hostname is %v, which is the address of a group",
			h.Bind).WithHint("set it to one address or interface of this machine")
	}
	if h.Bind.Is6() && h.Bind.IsLinkLocalUnicast() {
		return h, errs.New(errs.InvalidArgument, "listen", "%s is local to a link: each host has its own",
			h.Bind).WithHint("set rpc_server_hostname to another address of this machine, IPv4 or one such as fd00::5")
	}
	if advertised == "" {
		return h, nil
	}
	h.Name, err = n.advertised(advertised)
	return h, err
}

// isGroup reports a multicast address, or that of all hosts. The kernel listens there, and nobody can connect to it.
func isGroup(a netip.Addr) bool {
	return a.Unmap().IsMulticast() || a.Unmap() == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// advertised returns the host of rpc_advertise_hostname as it stands in an address. It may be a name or an address that
// only peers know, so nobody is asked.
func (n Lookups) advertised(host string) (string, error) {
	if _, is := n.Interface(host); is {
		a, err := n.named(host)
		return a.String(), err
	}
	address := net.JoinHostPort(host, "65535") // the longest port
	err := CheckAddress(address)
	literal, unparsed := netip.ParseAddr(host)
	switch {
	case err == nil && len(address) > addressMax:
		err = invalid("the host has %d bytes", len(host))
	case unparsed == nil && (literal.IsUnspecified() || isGroup(literal)):
		err = invalid("it is not the address of one host")
	}
	if err != nil {
		return "", errs.New(errs.InvalidArgument, "listen", "rpc_advertise_hostname is %q, which peers cannot use: %s",
			errs.Printable(host, hostMax), errs.From("listen", err).Cause).
			WithHint("set it to a host name, an IP address or an interface, without a port")
	}
	return host, nil
}

// addressMax bounds "host:port" in bytes, as peers do (control, segment).
const addressMax = 255

func behindWildcard(wildcard netip.Addr, advertised string, n Lookups) (netip.Addr, error) {
	if advertised != "" {
		if a, err := n.named(advertised); err == nil {
			return a, nil
		}
	}
	for _, far := range []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.MustParseAddr("2001:db8::1")} {
		if far.Is6() && wildcard.Is4() {
			break
		}
		if from, found := n.Source(far); found && !from.IsLoopback() {
			return from, nil
		}
	}
	return netip.Addr{}, errs.New(errs.InvalidArgument, "listen",
		"rpc_server_hostname is %q, and no default route tells which of this machine's addresses peers can use",
		wildcard.String()).
		WithHint("set rpc_server_hostname to an address or an interface, or rpc_advertise_hostname beside it")
}

// named returns this machine's address behind an interface or a name: IPv4 first, loopback last.
func (n Lookups) named(name string) (netip.Addr, error) {
	fail := func(format string, args ...any) (netip.Addr, error) {
		return netip.Addr{}, errs.New(errs.InvalidArgument, "listen", format, args...).
			WithHint("set rpc_server_hostname to a name, an address or an interface of this machine")
	}
	found, is := n.Interface(name)
	if !is {
		var err error
		if found, err = n.Lookup(name); err != nil {
			return fail("the host of rpc_server_hostname, %q, is unknown: %s", errs.Printable(name, hostMax),
				whyUnknown(err))
		}
	}
	own := slices.DeleteFunc(slices.Clone(found), func(a netip.Addr) bool { return !n.Own(a) })
	switch {
	case is && len(own) == 0:
		return fail("the interface %q has no address", name)
	case len(own) == 0:
		return fail("%q leads to %v, which is no address of this machine", name, found)
	}
	rank := func(a netip.Addr) int {
		r := 0
		if a.IsLoopback() || a.IsLinkLocalUnicast() {
			r += 2
		}
		if !a.Is4() {
			r++
		}
		return r
	}
	return slices.MinFunc(own, func(a, b netip.Addr) int { return rank(a) - rank(b) }), nil
}

// whyUnknown drops the name from the error of a resolver.
func whyUnknown(err error) string {
	if e := (*net.DNSError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err.Error()
}

func lookup(host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range list {
		list[i] = list[i].Unmap()
	}
	return list, err
}

func addressesOf(name string) ([]netip.Addr, bool) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil, false
	}
	return unpacked(device.Addrs), true
}

// isOwn reports whether a socket may be bound to the address.
func isOwn(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(unpacked(net.InterfaceAddrs), a.WithZone(""))
}

func unpacked(addresses func() ([]net.Addr, error)) []netip.Addr {
	var list []netip.Addr
	found, err := addresses()
	if err != nil {
		return nil // an interface that has just gone has none
	}
	for _, each := range found {
		if n, is := each.(*net.IPNet); is {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				list = append(list, a.Unmap())
			}
		}
	}
	return list
}
