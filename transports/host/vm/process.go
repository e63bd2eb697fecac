package vm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Identity says which process somebody is, in terms of the kernel.
type Identity struct {
	PID     uint32
	Started uint64 // clock ticks since boot; with PID unique until the machine boots again
	UID     uint32 // real, effective and saved
	GID     uint32
	PIDNS   uint64 // inode numbers of namespaces
	UserNS  uint64
}

// Self returns our own identity. It fails where /proc shows another pid namespace than ours: pids there are those of
// other processes.
func Self() (Identity, error) {
	if shown, err := os.Readlink("/proc/self"); err != nil || shown != strconv.Itoa(os.Getpid()) {
		return Identity{}, fmt.Errorf("/proc shows us as process %q, we are %d: it is not mounted for our pid "+
			"namespace", shown, os.Getpid())
	}
	return identify(os.Getpid())
}

// identify reads the identity of a process from /proc. With an error about its namespaces, the other fields are valid.
func identify(pid int) (Identity, error) {
	folder := "/proc/" + strconv.Itoa(pid)
	who := Identity{PID: uint32(pid)}
	status, err := os.ReadFile(folder + "/status")
	if err == nil {
		who.UID, err = only(status, "Uid")
	}
	if err == nil {
		who.GID, err = only(status, "Gid")
	}
	if err == nil {
		who.Started, err = started(pid)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("process %d: %w", pid, err)
	}
	for name, into := range map[string]*uint64{"pid": &who.PIDNS, "user": &who.UserNS} {
		var st unix.Stat_t
		if err := unix.Stat(folder+"/ns/"+name, &st); err != nil {
			return who, fmt.Errorf("process %d does not show its %s namespace (it is not dumpable, or not of our user "+
				"namespace): %w", pid, name, err)
		}
		*into = st.Ino
	}
	return who, nil
}

// only returns the id in a line of a process's status. The line has the real, the effective, the saved one and that for
// files. A process in the middle of a change is two users at once, and nobody's peer.
func only(status []byte, field string) (uint32, error) {
	var ids [4]uint32
	_, line, _ := bytes.Cut(status, []byte("\n"+field+":\t"))
	if n, err := fmt.Sscan(string(line), &ids[0], &ids[1], &ids[2], &ids[3]); n < len(ids) {
		return 0, fmt.Errorf("its status has no %s: %w", field, err)
	}
	if ids != [4]uint32{ids[0], ids[0], ids[0], ids[0]} {
		return 0, fmt.Errorf("its %s is %d, %d and %d at once", field, ids[0], ids[1], ids[2])
	}
	return ids[0], nil
}

// Boundary names the boundary between two processes of one machine that keeps each from the other's memory, "" if
// nothing is known to. Yama, and a process that is not dumpable, show only when it is tried.
func (i Identity) Boundary(peer Identity) string {
	switch {
	case i.UID != peer.UID:
		return fmt.Sprintf("the peer runs as user %d, we as user %d", peer.UID, i.UID)
	case i.GID != peer.GID:
		return fmt.Sprintf("the peer runs as group %d, we as group %d", peer.GID, i.GID)
	case i.UserNS != peer.UserNS:
		return "the peer runs in another user namespace (a container's boundary)"
	case i.PIDNS != peer.PIDNS:
		return "the peer runs in another pid namespace (a container's boundary)"
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

// Open finds the process that has a pid and began at a time. The error wraps ESRCH when there is none (any more). Where
// /proc hides the process, the error says so.
func Open(pid uint32, at uint64) (*Process, error) {
	if pid == 0 || pid > 1<<31-1 {
		return nil, fmt.Errorf("process %d: %w", pid, unix.EINVAL)
	}
	fd, err := unix.PidfdOpen(int(pid), 0)
	switch {
	case err == unix.ESRCH:
		return nil, fmt.Errorf("there is no process %d here; it has ended, or runs in another pid namespace or on "+
			"another machine: %w", pid, err)
	case err != nil:
		return nil, fmt.Errorf("pidfd_open of process %d: %w", pid, err)
	}
	p := &Process{pid: int(pid), pidfd: fd}
	// The pidfd is of the process that has the number now. If that one began when the peer did, and has not ended
	// since, it is the peer.
	found, err := started(int(pid))
	switch {
	case p.Ended():
		err = fmt.Errorf("process %d has ended: %w", pid, unix.ESRCH)
	case err != nil:
		err = fmt.Errorf("/proc does not show process %d, although there is one (is it mounted with hidepid, or for "+
			"another pid namespace?): %w", pid, err)
	case found != at:
		err = fmt.Errorf("process %d began at %d, not at %d; the other one has ended, or runs in another pid "+
			"namespace or on another machine: %w", pid, found, at, unix.ESRCH)
	default:
		return p, nil
	}
	p.Close()
	return nil, err
}

// Apart returns the difference between a process and us, nil if user, group and namespaces are the same. It asks the
// kernel; nothing counts that the process says of itself.
func (p *Process) Apart(me Identity) error {
	peer, err := identify(p.pid)
	if p.Ended() {
		return fmt.Errorf("process %d has ended: %w", p.pid, unix.ESRCH)
	}
	if err != nil && (peer.Started == 0 || peer.UID == me.UID && peer.GID == me.GID) {
		return err
	}
	if why := me.Boundary(peer); why != "" {
		return errors.New(why)
	}
	return nil
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

// File names a file that a process holds open.
type File struct {
	Fd       uint32 // of that process
	Dev, Ino uint64 // another file may be open under the number by now
}

// FileOf names an open file of ours to other processes.
func FileOf(fd int) (File, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return File{uint32(fd), st.Dev, st.Ino}, err
}

// Reopen opens a memfd of the process anew, with other flags if wanted. One that the peer has open for writing is
// opened with O_RDONLY, for instance. It needs the right to read only. The descriptor is the caller's. The error wraps
// ENOENT or ESTALE where the process has closed the file.
func (p *Process) Reopen(f File, flags int) (int, error) {
	return p.reopen(f, flags, func(held int, _ *unix.Statx_t) error {
		if title, err := os.Readlink(heldPath(held)); err != nil || !strings.HasPrefix(title, "/memfd:") {
			return fmt.Errorf("it is %q, and no memfd: %w", title, unix.EPERM)
		}
		return nil
	})
}

// ReopenUnnamed does the same with a file of a file system that has no name any more. One that has a name may be
// somebody else's: the process may show it without the right to open it (open(2), O_PATH).
func (p *Process) ReopenUnnamed(f File, flags int) (int, error) {
	return p.reopen(f, flags, func(_ int, found *unix.Statx_t) error {
		if found.Nlink != 0 {
			return fmt.Errorf("it has a name: %w", unix.EPERM)
		}
		return nil
	})
}

// reopen opens a file that suits. It takes hold of the file first, which opens nothing. So the process cannot exchange
// it behind the check, and nothing but a regular file is opened. Opening a device or a FIFO has effects, and opening a
// file of a program (FUSE) may never return.
func (p *Process) reopen(f File, flags int, suits func(held int, found *unix.Statx_t) error) (int, error) {
	held, err := unix.Open(p.path(f), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(held)
		if p.Ended() { // then the path may have led to another process
			err = unix.ESRCH
		}
	}
	if err != nil {
		return -1, fmt.Errorf("open of %s: %w", p.path(f), err)
	}
	var found unix.Statx_t
	err = unix.Statx(held, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &found)
	switch {
	case err != nil:
	case unix.Mkdev(found.Dev_major, found.Dev_minor) != f.Dev || found.Ino != f.Ino:
		return -1, p.closed(f)
	case found.Mode&unix.S_IFMT != unix.S_IFREG:
		err = fmt.Errorf("it is no regular file: %w", unix.EPERM)
	default:
		err = suits(held, &found)
	}
	fd := -1
	if err == nil {
		fd, err = unix.Open(heldPath(held), flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return -1, fmt.Errorf("file %d of process %d: %w", f.Fd, p.pid, err)
	}
	return fd, nil
}

// heldPath leads to a file of our own.
func heldPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func (p *Process) closed(f File) error {
	return fmt.Errorf("process %d has closed the file that it named as %d: %w", p.pid, f.Fd, unix.ESTALE)
}

// Title returns the name of a file of the process, as the kernel shows it. Nothing is opened, so it is safe with a
// number that somebody made up: opening a device or a FIFO has effects.
func (p *Process) Title(f File) (string, error) { return os.Readlink(p.path(f)) }

func (p *Process) path(f File) string {
	return "/proc/" + strconv.Itoa(p.pid) + "/fd/" + strconv.FormatUint(uint64(f.Fd), 10)
}

// Touch tries whether we may read the peer's own memory, and returns EPERM or ESRCH, wrapped, if not. The kernel checks
// that before it looks at the address, so the one that it is asked for is one where nothing ever is.
func (p *Process) Touch() error {
	var b [1]byte
	errno := peek(p.pid, 0, b[:])
	if p.Ended() {
		errno = unix.ESRCH
	}
	if errno != 0 && errno != unix.EFAULT {
		return fmt.Errorf("process_vm_readv of process %d: %w", p.pid, errno)
	}
	return nil
}

// Close gives the pidfd back.
func (p *Process) Close() { _ = unix.Close(p.pidfd) }
