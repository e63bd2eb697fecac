package vm

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Identity says which process somebody is, in terms that the kernel confirms. Peers tell it to each other.
type Identity struct {
	PID     uint32
	Started uint64 // clock ticks since boot; with PID unique until the machine boots again
	UID     uint32
	GID     uint32
	PIDNS   uint64 // inode numbers of namespaces
	UserNS  uint64
}

// Self returns our own identity.
func Self() (Identity, error) {
	me := Identity{PID: uint32(os.Getpid()), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	var err error
	if me.Started, err = started(os.Getpid()); err != nil {
		return me, err
	}
	for name, into := range map[string]*uint64{"pid": &me.PIDNS, "user": &me.UserNS} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+name, &st); err != nil {
			return me, fmt.Errorf("/proc/self/ns/%s: %w", name, err)
		}
		*into = st.Ino
	}
	return me, nil
}

// Boundary names the boundary between two processes of one machine that keeps each from the other's memory, "" if
// nothing is known to. Yama, and a process that is not dumpable, show only when it is tried.
func (i Identity) Boundary(peer Identity) string {
	switch {
	case i.UserNS != peer.UserNS:
		return "the peer runs in another user namespace (a container's boundary)"
	case i.PIDNS != peer.PIDNS:
		return "the peer runs in another pid namespace (a container's boundary)"
	case i.UID != peer.UID:
		return fmt.Sprintf("the peer runs as user %d, we as user %d", peer.UID, i.UID)
	case i.GID != peer.GID:
		return fmt.Sprintf("the peer runs as group %d, we as group %d", peer.GID, i.GID)
	}
	return ""
}

// started reads when a process started, field 22 of its stat.
func started(pid int) (uint64, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is a name that may hold anything, brackets and spaces too; the third follows the last bracket.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat is malformed", pid)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// Process is another process of this machine, told from every other, also from later ones with its pid. Any goroutine
// may use it until Close.
type Process struct {
	pid   int
	pidfd int
}

// Open finds the process that has a pid and began at a time. The error wraps ESRCH when there is none (any more).
func Open(pid uint32, at uint64) (*Process, error) {
	if pid == 0 || pid > 1<<31-1 {
		return nil, fmt.Errorf("process %d: %w", pid, unix.EINVAL)
	}
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open of process %d: %w", pid, err)
	}
	p := &Process{pid: int(pid), pidfd: fd}
	// The pidfd is of the process that has the number now. If that one began when the peer did, and has not ended
	// since, it is the peer.
	found, err := started(int(pid))
	if err == nil && found == at && !p.Ended() {
		return p, nil
	}
	p.Close()
	return nil, fmt.Errorf("process %d began at %d, not at %d (%v): %w", pid, found, at, err, unix.ESRCH)
}

// PID is its number, for Vector's calls.
func (p *Process) PID() int { return p.pid }

// Fd is the pidfd: readable when the process has ended. It stays the Process's.
func (p *Process) Fd() int { return p.pidfd }

// Ended reports whether all threads of the process have ended: none of them touches memory any more.
func (p *Process) Ended() bool {
	set := [1]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for {
		switch n, err := unix.Poll(set[:], 0); err {
		case unix.EINTR:
		default:
			return err == nil && n > 0 && set[0].Revents&unix.POLLIN != 0
		}
	}
}

// ReopenFile opens the file of a descriptor of the process anew, with other flags if wanted. A file that the peer has
// open for writing is opened with O_RDONLY, for instance. The file may be a memfd or a deleted one. It needs the right
// to read only. The caller compares device and inode with those it was told: the peer may have closed the descriptor
// and opened something else by now. The descriptor is the caller's.
func (p *Process) ReopenFile(fd uint32, flags int) (int, error) {
	path := "/proc/" + strconv.Itoa(p.pid) + "/fd/" + strconv.FormatUint(uint64(fd), 10)
	got, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil && p.Ended() { // then the path may have led to another process
		_ = unix.Close(got)
		err = unix.ESRCH
	}
	if err != nil {
		return -1, fmt.Errorf("open of %s: %w", path, err)
	}
	return got, nil
}

// Verify reads the peer's memory for the first time and compares it with the bytes that the peer announced, such as a
// random number. nil proves that we can read the memory of the process that told us so; EPERM, ESRCH and EFAULT are
// wrapped.
func (p *Process) Verify(at uintptr, want []byte) error {
	got := make([]byte, len(want))
	if errno := peek(p.pid, at, got); errno != 0 {
		return fmt.Errorf("process_vm_readv of process %d: %w", p.pid, errno)
	}
	if !bytes.Equal(got, want) || p.Ended() {
		return fmt.Errorf("process %d is not the one that it should be: %w", p.pid, unix.ESRCH)
	}
	return nil
}

// Close gives the pidfd back.
func (p *Process) Close() { _ = unix.Close(p.pidfd) }
