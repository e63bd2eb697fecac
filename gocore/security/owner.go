package security

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// users are those that mode local admits, by their processes.
type users struct {
	any  bool
	uids []uint32 // our own is the first
}

// nameShown is the number of bytes of a user's name that an error shows.
const nameShown = 64

// parseUsers reads security/local_users.
func parseUsers(names []string, own int) (users, error) {
	u := users{uids: []uint32{uint32(own)}}
	for _, name := range names {
		if name == "any" {
			u.any = true
			continue
		}
		number, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			found, err := user.Lookup(name)
			if err != nil {
				return u, errs.New(errs.InvalidArgument, "security",
					"security/local_users: no user of this host is named %q", errs.Printable(name, nameShown)).
					WithHint(`it takes names and numbers of users, and "any"`)
			}
			if number, err = strconv.ParseUint(found.Uid, 10, 32); err != nil {
				return u, errs.Wrap(errs.Internal, "security", err)
			}
		}
		u.uids = append(u.uids, uint32(number))
	}
	return u, nil
}

// MayRead refuses a connection without TLS, such as that of a scraper, by the error. In mode local it admits the users
// that may connect as peers. In other modes nothing is known about it, and anybody may that reaches us.
func (c *Credentials) MayRead(conn net.Conn) error {
	if c.mode != Local {
		return nil
	}
	_, err := c.users.admit(conn)
	return err
}

// admit returns the identity of the process at the other end of a connection, "" if nothing proves one, or the reason
// to refuse it.
func (u *users) admit(conn net.Conn) (identity string, err error) {
	local, remote := addrPort(conn.LocalAddr()), addrPort(conn.RemoteAddr())
	owner, err := ownerOf(remote, local)
	switch {
	case errors.Is(err, errNoSocket):
		return "", &NotAdmitted{unowned: true, Reason: remote.String() + " is no process of this host (or network " +
			"namespace), and mode local admits no others: set security/cluster_key on both sides"}
	case err != nil:
		cure := cmp.Or(errs.Wrap(errs.Internal, "security", err).Hint, "set security/cluster_key on both sides")
		return "", refuse("the user of %v cannot be found out: %v; %s", remote, err, cure)
	case isUnmapped(owner):
		if u.any {
			return "", nil
		}
		return "", refuse("its user has no number in the user namespace of this engine; set security/cluster_key on " +
			"both sides")
	case !u.any && !slices.Contains(u.uids, owner):
		return "", refuse("it belongs to user %d, and this engine to user %d: security/local_users admits others, "+
			"security/cluster_key the holders of a key", owner, u.uids[0])
	}
	return "uid:" + strconv.Itoa(int(owner)), nil
}

// overflowUser is the number that the kernel gives for users without one (user_namespaces(7)), if nobody has set
// another in overflowFile.
const (
	overflowUser = 65534
	overflowFile = "/proc/sys/kernel/overflowuid"
)

// isUnmapped reports whether the kernel may have given a number for a user that our user namespace does not map. Then
// it stands for all of them, and for the namespace's own user of that number, usually nobody.
func isUnmapped(uid uint32) bool {
	text, err := os.ReadFile(overflowFile)
	overflow, failed := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || failed != nil {
		overflow = overflowUser
	}
	if uint64(uid) != overflow {
		return false
	}
	users, err := os.ReadFile("/proc/self/uid_map")
	if errors.Is(err, fs.ErrNotExist) { // of a kernel without user namespaces, if /proc is there
		_, err = os.Stat("/proc/self/status")
		return err != nil
	}
	return err != nil || !slices.Equal(strings.Fields(string(users)), []string{"0", "0", "4294967295"})
}

func addrPort(a net.Addr) netip.AddrPort {
	found, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(found.Addr().Unmap().WithZone(""), found.Port())
}

// errNoSocket says that the kernel knows no such connection.
var errNoSocket = errors.New("no such socket")

// ownerOf returns the user of an established TCP socket of this network namespace, found by its two ends. It asks the
// kernel by sock_diag(7), and reads its tables where that is not allowed or not built. ENOENT may mean that, or a
// socket that is gone; the second it is once sock_diag has answered in this process. Then strangers that hang up at
// once cost us no walk through the tables.
func ownerOf(local, remote netip.AddrPort) (uint32, error) {
	if !local.IsValid() || !remote.IsValid() {
		return 0, errNoSocket
	}
	uid, err := ownerByDiag(local, remote)
	switch {
	case err == nil:
		diagAnswers.Store(true)
		return uid, nil
	case errors.Is(err, errNoSocket), errors.Is(err, unix.ENOENT) && diagAnswers.Load():
		return 0, errNoSocket
	}
	return ownerByProc(local, remote)
}

// diagAnswers says that sock_diag has found a socket: the kernel has it, and we may ask.
var diagAnswers atomic.Bool

// Offsets and sizes of linux/inet_diag.h and linux/netlink.h: a header, and behind it the struct.
const (
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	established      = 1  // TCP_ESTABLISHED

	headerSize   = unix.SizeofNlMsghdr
	requestSize  = headerSize + 8 + socketIDSize // struct inet_diag_req_v2
	socketIDSize = 48                            // struct inet_diag_sockid
	answerFamily = headerSize                    // struct inet_diag_msg
	answerState  = headerSize + 1
	answerEnds   = headerSize + 4
	answerOwner  = answerEnds + socketIDSize + 12
	answerInode  = answerOwner + 4
	answerSize   = answerInode + 4
)

// appendEnds writes the two ends of a connection as the kernel knows them: ports and addresses in network order.
func appendEnds(b []byte, local, remote netip.AddrPort) []byte {
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = binary.BigEndian.AppendUint16(b, remote.Port())
	for _, end := range []netip.AddrPort{local, remote} {
		var address [16]byte
		copy(address[:], end.Addr().AsSlice())
		b = append(b, address[:]...)
	}
	return b
}

// readEnd reads one end; a socket of IPv6 may carry IPv4.
func readEnd(port, address []byte, six bool) netip.AddrPort {
	at := netip.AddrFrom16([16]byte(address[:16])).Unmap()
	if !six {
		at = netip.AddrFrom4([4]byte(address[:4]))
	}
	return netip.AddrPortFrom(at, binary.BigEndian.Uint16(port))
}

// ownerByDiag asks for one socket.
func ownerByDiag(local, remote netip.AddrPort) (uint32, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }() // only a question was asked
	family := byte(unix.AF_INET)
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	ask := binary.NativeEndian.AppendUint32(make([]byte, 0, requestSize), requestSize)
	ask = binary.NativeEndian.AppendUint16(ask, sockDiagByFamily)
	ask = binary.NativeEndian.AppendUint16(ask, unix.NLM_F_REQUEST)
	ask = append(ask, make([]byte, 8)...)                                 // sequence, port
	ask = append(ask, family, unix.IPPROTO_TCP, 0, 0, 255, 255, 255, 255) // nothing beside, in any state
	ask = appendEnds(ask, local, remote)
	ask = append(ask, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255) // any interface, any cookie
	if err := unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	// The kernel answers before send returns; the flag keeps us from waiting where it did not.
	var space [512]byte
	n, from, err := unix.Recvfrom(fd, space[:], unix.MSG_DONTWAIT)
	if err != nil {
		return 0, err
	}
	if sender, is := from.(*unix.SockaddrNetlink); !is || sender.Pid != 0 {
		return 0, errors.New("sock_diag: somebody else answered for the kernel")
	}
	return readDiag(space[:n], local, remote)
}

// readDiag reads the kernel's answer. The kernel falls back to a listener where no connection matches, and a socket
// that is orphaned or in TIME_WAIT has no owner, which reads as root: so ends, state and inode are looked at.
func readDiag(answer []byte, local, remote netip.AddrPort) (uint32, error) {
	if len(answer) >= headerSize+4 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(answer[headerSize:])))
	}
	if len(answer) < answerSize {
		return 0, fmt.Errorf("sock_diag: an answer of %d bytes", len(answer))
	}
	six, ends := answer[answerFamily] == unix.AF_INET6, answer[answerEnds:]
	if readEnd(ends, ends[4:], six) != local || readEnd(ends[2:], ends[20:], six) != remote ||
		answer[answerState] != established || binary.NativeEndian.Uint32(answer[answerInode:]) == 0 {
		return 0, errNoSocket
	}
	return binary.NativeEndian.Uint32(answer[answerOwner:]), nil
}

// ownerByProc looks for a connection in the tables of the kernel. A socket of IPv6 may carry IPv4.
func ownerByProc(local, remote netip.AddrPort) (uint32, error) {
	texts, err := kernelTables.read()
	if err != nil {
		return 0, err
	}
	for _, text := range texts {
		if owner, err := findOwner(text, local, remote); !errors.Is(err, errNoSocket) {
			return owner, err
		}
	}
	return 0, errNoSocket
}

// findOwner reads lines as proc_net_tcp(5) describes them: "sl local remote st queues timer retrnsmt uid timeout
// inode".
func findOwner(table string, local, remote netip.AddrPort) (uint32, error) {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[3] != "01" || fields[9] == "0" || // 01: established
			procAddress(fields[1]) != local || procAddress(fields[2]) != remote {
			continue
		}
		owner, err := strconv.ParseUint(fields[7], 10, 32)
		return uint32(owner), err
	}
	return 0, errNoSocket
}

// procAddress reads "0100007F:A3C1": words of 32 bits in the machine's order, and a port.
func procAddress(text string) netip.AddrPort {
	words, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil || (len(words) != 8 && len(words) != 32) {
		return netip.AddrPort{}
	}
	var raw []byte
	for ; words != ""; words = words[8:] {
		word, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}
		}
		raw = binary.NativeEndian.AppendUint32(raw, uint32(word))
	}
	address, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(address.Unmap(), uint16(number))
}
