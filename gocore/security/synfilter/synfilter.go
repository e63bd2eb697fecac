// Package synfilter lets the kernel drop most new connections of some networks, before a program of ours runs.
//
// It attaches a classic BPF program (McCanne and Jacobson, "The BSD Packet Filter", 1993; socket(7), SO_ATTACH_FILTER)
// to a listening socket, which needs no privilege. The program looks at SYNs alone, so connections that are there go
// on. A dropped SYN comes again by itself, after 1, 3 and 7 s (RFC 6298): a lottery lets some pass, so an honest peer
// of a crowded network is late, and not refused.
//
// A SYN that is dropped costs the engine no system call, no goroutine and no answer. One that was accepted to be closed
// again cost it 17 µs: a quarter of a processor at 16,000 a second.
package synfilter

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// NetworksMost bounds the networks of a filter.
const NetworksMost = 32

// Offsets in a SYN. The kernel shows the program a packet from its TCP header on, and the rest by negative offsets.
const (
	flags      = 13
	synAndAck  = 0x12
	syn        = 0x02
	ip         = -0x100000 // SKF_NET_OFF
	source4    = ip + 12
	source6    = ip + 8
	random     = -0x1000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM
	pass, drop = 0xffffffff, 0
)

// Attach replaces the filter of a listening socket: of the SYNs of these networks one in `passes` gets through, of all
// others each. A network is an address of IPv4 or 64 bits of IPv6; beyond NetworksMost they are left out. Without a
// network it removes the filter.
func Attach(listener syscall.Conn, networks []netip.Prefix, passes uint32) error {
	raw, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = attach(int(fd), networks, passes) }); err != nil {
		return err
	}
	return failed
}

func attach(fd int, networks []netip.Prefix, passes uint32) error {
	if len(networks) == 0 {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		if err == unix.ENOENT { // it has none
			return nil
		}
		return err
	}
	code := program(networks[:min(len(networks), NetworksMost)], passes)
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
}

// program is the filter:
//
//	no SYN ──▶ pass        source of a listed network ──▶ lottery ──▶ pass, or drop        any other ──▶ pass
func program(networks []netip.Prefix, passes uint32) (code []unix.SockFilter) {
	var lost []int // jumps to the lottery
	add := func(op uint16, k int64, yes, no uint8) {
		code = append(code, unix.SockFilter{Code: op, K: uint32(k), Jt: yes, Jf: no})
	}
	load := func(at int64) { add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, at, 0, 0) }
	unless := func(value uint32, skip uint8) { add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, int64(value), 0, skip) }
	lottery := func() { lost = append(lost, len(code)); add(unix.BPF_JMP|unix.BPF_JA, 0, 0, 0) }
	verdict := func(v int64) { add(unix.BPF_RET|unix.BPF_K, v, 0, 0) }

	add(unix.BPF_LD|unix.BPF_B|unix.BPF_ABS, flags, 0, 0)
	add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, synAndAck, 0, 0)
	add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, syn, 1, 0)
	verdict(pass)
	add(unix.BPF_LD|unix.BPF_B|unix.BPF_ABS, ip, 0, 0)
	add(unix.BPF_ALU|unix.BPF_RSH|unix.BPF_K, 4, 0, 0)
	unless(6, 1)
	six := len(code)
	add(unix.BPF_JMP|unix.BPF_JA, 0, 0, 0)
	load(source4)
	for _, n := range networks {
		if address := n.Addr().Unmap(); address.Is4() {
			four := address.As4()
			unless(binary.BigEndian.Uint32(four[:]), 1)
			lottery()
		}
	}
	verdict(pass)
	code[six].K = uint32(len(code) - six - 1)
	for _, n := range networks {
		if address := n.Addr().Unmap(); address.Is6() {
			sixteen := address.As16()
			load(source6)
			unless(binary.BigEndian.Uint32(sixteen[:]), 3)
			load(source6 + 4)
			unless(binary.BigEndian.Uint32(sixteen[4:]), 1)
			lottery()
		}
	}
	verdict(pass)
	for _, at := range lost {
		code[at].K = uint32(len(code) - at - 1)
	}
	load(random)
	add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, int64((1<<32-1)/max(passes, 1)), 0, 1)
	verdict(drop)
	verdict(pass)
	return code
}
