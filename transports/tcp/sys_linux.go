package tcp

import (
	"errors"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

// iovec and msghdr are the kernel's, with addresses that the garbage collector must not follow. Most of the memory
// that we send and receive is not Go's.
type iovec struct {
	base uintptr
	size uint64
}

type msghdr struct {
	name       uintptr
	nameSize   uint32
	_          uint32
	iov        *iovec
	iovCount   uint64
	control    uintptr
	controlLen uint64
	flags      int32
	_          int32
}

// inlineBytes is the size up to which a call is made without a word to Go's scheduler. It cannot block (the sockets do
// not) and copies for less than some 10 µs. Longer copies must let the garbage collector stop the world meanwhile.
const inlineBytes = 64 << 10

// socketCall makes one system call on a socket. Pointers among the arguments must be into the heap: a stack may move.
func socketCall(trap, fd, b, c, d, bytes uintptr) (int, unix.Errno) {
	var n uintptr
	var errno unix.Errno
	if bytes <= inlineBytes {
		n, _, errno = unix.RawSyscall6(trap, fd, b, c, d, 0, 0)
	} else {
		n, _, errno = unix.Syscall6(trap, fd, b, c, d, 0, 0)
	}
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func sendVector(fd int, m *msghdr, iov []iovec, bytes int) (int, unix.Errno) {
	m.iov, m.iovCount = &iov[0], uint64(len(iov))
	return socketCall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0,
		uintptr(bytes))
}

func receiveVector(fd int, m *msghdr, iov []iovec, bytes int) (int, unix.Errno) {
	m.iov, m.iovCount = &iov[0], uint64(len(iov))
	return socketCall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), unix.MSG_DONTWAIT, 0, uintptr(bytes))
}

func sendBytes(fd int, b []byte) (int, unix.Errno) {
	n := uintptr(len(b))
	return socketCall(unix.SYS_SENDTO, uintptr(fd), mem.AddressOf(b), n, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, n)
}

func receive(fd int, b []byte) (int, unix.Errno) {
	n := uintptr(len(b))
	return socketCall(unix.SYS_RECVFROM, uintptr(fd), mem.AddressOf(b), n, unix.MSG_DONTWAIT, n)
}

// discard drops up to n bytes of the stream without copying them.
func discard(fd, n int) (int, unix.Errno) {
	return socketCall(unix.SYS_RECVFROM, uintptr(fd), 0, uintptr(n), unix.MSG_DONTWAIT|unix.MSG_TRUNC, uintptr(n))
}

// arrivalAge returns for how long the next byte of the stream has been waiting in the socket; false if there is none.
// It is less where the kernel has joined a later packet to its own.
func arrivalAge(fd int) (time.Duration, bool) {
	var b [1]byte
	var control [128]byte
	n, controlLen, _, _, err := unix.Recvmsg(fd, b[:], control[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err != nil || n == 0 {
		return 0, false
	}
	messages, err := unix.ParseSocketControlMessage(control[:controlLen])
	if err != nil {
		return 0, false
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			arrived := *(*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			var now unix.Timespec
			if unix.ClockGettime(unix.CLOCK_REALTIME, &now) != nil {
				return 0, false
			}
			return time.Duration(now.Nano() - arrived.Nano()), true
		}
	}
	return 0, false
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	s := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if zone := a.Addr().Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			s.ZoneId = uint32(i.Index)
		}
	}
	return s
}

func addrPort(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	}
	return netip.AddrPort{}
}

// newSocket makes a non-blocking TCP socket. Never MPTCP, which Go's own listeners are where the kernel has it: such a
// socket refuses TCP_USER_TIMEOUT.
func newSocket(a netip.Addr) (int, error) {
	family := unix.AF_INET
	if !a.Is4() {
		family = unix.AF_INET6
	}
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
}

// scarce reports whether a call failed for want of something at our own end, descriptors or memory.
func scarce(err error) bool {
	for _, errno := range [...]unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// option is one socket option with the reason why it is set.
type option struct{ level, name, value int }

// tune sets the options that both ends of a lane want. A lane is worth more than an option that this kernel lacks:
// errors are ignored but for no-delay, without which every acknowledgement waits for another.
func tune(fd int, s *Settings, sameHost bool) error {
	// Frames are complete when they are written; Nagle (RFC 896) would hold the tail of each back for a round trip.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	for _, o := range [...]option{
		// A rail that drops packets silently gives no error otherwise for a quarter of an hour (RFC 5482).
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(s.UserTimeout.Milliseconds())},
		// An idle lane has nothing unacknowledged, so only probes find out that its path has gone.
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 5},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		// A slice of a higher class waits behind bytes that have not left our host yet, and a withdrawal cannot take
		// them back. They are bounded here, not by the megabytes of the send buffer.
		{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentBytes},
	} {
		_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)
	}
	setCongestion(fd, s.Congestion, sameHost)
	return nil
}

// notSentBytes keeps a sender busy for some 100 µs on a fast path, which is the time that waking it takes.
const notSentBytes = 512 << 10

// setCongestion: bbr, the default of some systems, paces even on loopback and costs up to 1.6 times there. Only root
// may choose freely; reno is allowed to everybody and as good as cubic where nothing is lost.
func setCongestion(fd int, name string, sameHost bool) {
	switch {
	case name == "auto" && sameHost:
		if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	case name != "auto" && name != "system":
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
	}
}

// stampArrivals makes the kernel note when bytes arrived, for arrivalAge. Connections inherit it from their listener.
func stampArrivals(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
}

// waitFd waits until fd is ready for events, stopped says so, or the end has come. Nothing comes to one that is closed.
func waitFd(fd int, events int16, stopped func() bool, end time.Time) error {
	for {
		left := time.Until(end)
		switch {
		case stopped():
			return unix.ECANCELED
		case left <= 0:
			return unix.ETIMEDOUT
		case fd < 0:
			return unix.EBADF
		}
		set := [1]unix.PollFd{{Fd: int32(fd), Events: events}}
		switch n, err := unix.Poll(set[:], int(min(left, 20*time.Millisecond).Milliseconds())+1); {
		case err != nil && err != unix.EINTR:
			return err
		case n > 0:
			return nil
		}
	}
}
