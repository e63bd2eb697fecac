package tcp

import (
	"net"
	"net/netip"
)

// pair is a rail's two ends: ours, and where the peer listens.
type pair struct {
	local  netip.Addr
	remote netip.AddrPort
}

// pairUp matches local to remote ends: those in one subnet, the same index first, each end once; where no two share a
// subnet, the i-th with the i-th. With all, every pair of one family is a rail. Loopback ends only meet on one host.
func pairUp(local []netip.Addr, remote []netip.AddrPort, subnets []netip.Prefix, all, sameHost bool) []pair {
	possible := func(a netip.Addr, b netip.Addr) bool {
		return a.Is4() == b.Is4() && a.IsLoopback() == b.IsLoopback() && (sameHost || !b.IsLoopback())
	}
	var pairs []pair
	if all {
		for _, a := range local {
			for _, b := range remote {
				if possible(a, b.Addr()) {
					pairs = append(pairs, pair{a, b})
				}
			}
		}
		return pairs
	}
	used := make([]bool, len(remote))
	for i, a := range local {
		for k := range remote {
			j := (i + k) % len(remote)
			if b := remote[j]; !used[j] && possible(a, b.Addr()) && together(a, b.Addr(), subnets) {
				used[j] = true
				pairs = append(pairs, pair{a, b})
				break
			}
		}
	}
	if len(pairs) > 0 {
		return pairs
	}
	for i := range min(len(local), len(remote)) {
		if possible(local[i], remote[i].Addr()) {
			pairs = append(pairs, pair{local[i], remote[i]})
		}
	}
	return pairs
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
