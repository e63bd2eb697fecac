package tcp

import (
	"net"
	"net/netip"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/nic"
	"github.com/tent-engine/tent/gocore/transport"
)

// pair is a rail's two ends: ours, and where the peer listens.
type pair struct {
	local     netip.Addr
	remote    netip.AddrPort
	alternate bool
}

// pairsMax bounds the rails of a link, alternates included.
const pairsMax = 256

// named reports whether the settings name the local ends of rails.
func (t *Transport) named() bool { return len(t.settings.Addresses) > 0 }

// pairsTo lists the rails to a peer's ends; near is a peer to which loopback leads. Where the settings name no ends, a
// rail leaves by the address from which the route starts: the engine may listen on another one.
func (t *Transport) pairsTo(remote []netip.AddrPort, near bool) []pair {
	if t.named() {
		return pairUp(t.ends, remote, ownSubnets(), t.settings.RailPairs == "all", near)
	}
	pairs := routePairs(remote, nic.RouteSource, near)
	for _, p := range pairs {
		t.watch.add(p.local)
	}
	return pairs
}

// noPair says why no rail is possible, and which setting on which side makes one.
func (t *Transport) noPair(remote []netip.AddrPort) *errs.Error {
	e := errs.New(errs.NoRoute, "tcp.attach", "no local address fits one of the peer's: %v and %v", t.ends, remote)
	if t.named() {
		return e.WithHint("transports/tcp/addresses here names %v: leave it out, or name addresses that reach the "+
			"peer's; loopback leads to the same host and container only", t.ends)
	}
	return e.WithHint("no route leads there: set rpc_server_hostname at the peer to an address of the network " +
		"between the two; loopback leads to the same host and container only")
}

// Reach implements transport.Reacher.
func (t *Transport) Reach(peer transport.Peer, addresses []netip.AddrPort) error {
	if len(t.pairsTo(addresses, peer.Network == t.self.Network)) == 0 {
		return t.noPair(addresses)
	}
	return nil
}

// pairUp matches local to remote ends: those in one subnet, the same index first, each end once. Where no two share a
// subnet, it matches the i-th with the i-th. The other pairs follow as alternates, those in one subnet first. With
// all, every pair of one family is a rail. Loopback ends only meet on one host.
func pairUp(local []netip.Addr, remote []netip.AddrPort, subnets []netip.Prefix, all, sameHost bool) []pair {
	possible := func(i, j int) bool {
		a, b := local[i], remote[j].Addr()
		return a.Is4() == b.Is4() && a.IsLoopback() == b.IsLoopback() && (sameHost || !b.IsLoopback())
	}
	near := func(i, j int) bool { return possible(i, j) && together(local[i], remote[j].Addr(), subnets) }
	var pairs []pair
	taken := map[[2]int]bool{}
	take := func(i, j int, alternate bool) {
		if !taken[[2]int{i, j}] && len(pairs) < pairsMax {
			taken[[2]int{i, j}] = true
			pairs = append(pairs, pair{local[i], remote[j], alternate})
		}
	}
	if !all {
		match(len(local), len(remote), near, take)
		if len(pairs) == 0 {
			match(len(local), len(remote), func(i, j int) bool { return i == j && possible(i, j) }, take)
		}
	}
	for _, wanted := range []func(i, j int) bool{near, possible} {
		for i := range local {
			for j := range remote {
				if wanted(i, j) {
					take(i, j, !all && len(pairs) > 0)
				}
			}
		}
	}
	return pairs
}

// routePairs makes a rail to each of the peer's ends to which a route leads, from the address where that starts. Of two
// that leave by one address, the second is an alternate.
func routePairs(remote []netip.AddrPort, source func(netip.Addr) (netip.Addr, bool), sameNetwork bool) []pair {
	var pairs []pair
	used := map[netip.Addr]bool{}
	for _, r := range remote {
		if r.Addr().IsLoopback() && !sameNetwork {
			continue
		}
		if from, found := source(r.Addr()); found && len(pairs) < pairsMax {
			pairs = append(pairs, pair{from, r, used[from]})
			used[from] = true
		}
	}
	return pairs
}

// match takes pairs that fit, the same index first, each end once.
func match(n, m int, fits func(i, j int) bool, take func(i, j int, alternate bool)) {
	used := make([]bool, m)
	for i := range n {
		for k := range m {
			if j := (i + k) % m; !used[j] && fits(i, j) {
				used[j] = true
				take(i, j, false)
				break
			}
		}
	}
}

func together(a, b netip.Addr, subnets []netip.Prefix) bool {
	if a == b {
		return true
	}
	for _, s := range subnets {
		if s.Contains(a.WithZone("")) && s.Contains(b.WithZone("")) {
			return true
		}
	}
	return false
}

// ownSubnets lists the networks of this host's interfaces, each with our own address in it.
func ownSubnets() []netip.Prefix {
	var list []netip.Prefix
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil // no subnet is known: rails pair by index
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				ones, _ := n.Mask.Size()
				list = append(list, netip.PrefixFrom(ip.Unmap(), ones))
			}
		}
	}
	return list
}
