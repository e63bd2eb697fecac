package nic

import (
	"net"
	"net/netip"
)

// RouteSource returns the address from which packets to another one leave this machine. It asks the kernel by a UDP
// socket that is connected and sends nothing.
func RouteSource(to netip.Addr) (from netip.Addr, found bool) {
	socket, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		return from, false
	}
	defer func() { _ = socket.Close() }() // only a question was asked
	at, err := netip.ParseAddrPort(socket.LocalAddr().String())
	return at.Addr().Unmap(), err == nil
}
