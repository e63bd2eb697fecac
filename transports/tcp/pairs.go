package tcp

import (
	"net"
	"net/netip"
)

// pair is a rail's two ends: ours, and where the peer listens.
type pair struct {
	local     netip.Addr
	remote    netip.AddrPort
	alternate bool
}

// pairsMax bounds the rails of a link, alternates included.
const pairsMax = 256

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

// ownSubnets lists the networks of this host's interfaces.
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
				list = append(list, netip.PrefixFrom(ip.Unmap(), ones).Masked())
			}
		}
	}
	return list
}
