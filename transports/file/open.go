package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// OpenFile implements transport.Filer. It leaves nothing open.
//
// A file that is made gets mode 0600. Growing reserves the space (fallocate), so a full disk fails here and not in the
// middle of a transfer; where a file system cannot reserve, the file grows sparse. Nothing shrinks a file but Truncate,
// which keeps the bytes of a file that cannot have its new size: two engines that grow the same file at once leave the
// larger size. A file that is made has its size before its name, so nobody opens one that cannot grow; where the file
// system has no files without a name (O_TMPFILE), such a file stays, empty. A file system that hangs may make the file
// although OpenFile has returned with its ctx.
func (t *base) OpenFile(ctx context.Context, spec transport.FileSpec) (transport.FileCard, error) {
	if t.life.Closed() {
		return transport.FileCard{}, kit.Closed(t.name + ".open")
	}
	if err := check(spec); err != nil {
		return transport.FileCard{}, err
	}
	var made transport.FileCard
	err := t.apart(ctx, &doing{"open", spec.Path, t.fileSystemOf(spec.Path)}, func() (err error) {
		made, err = t.openFile(ctx, spec)
		return err
	}, func() {})
	if err != nil {
		return transport.FileCard{}, err
	}
	return made, nil
}

// openFile is OpenFile on a goroutine that may wait for the file system.
func (t *base) openFile(ctx context.Context, spec transport.FileSpec) (transport.FileCard, error) {
	fd, made, err := t.settings.openOrMake(ctx, spec)
	if err != nil {
		return transport.FileCard{}, err
	}
	defer unix.Close(fd)
	c := &card{transport.FileCard{ReadOnly: spec.ReadOnly, Cached: spec.Cached, Path: spec.Path}}
	if c.Path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		c.Path = filepath.Clean(spec.Path)
	}
	if err := c.identify(fd); err != nil {
		return transport.FileCard{}, err
	}
	spec.Truncate = spec.Truncate && !made
	if err := c.resize(ctx, fd, spec); err != nil {
		if made {
			e := *errs.From("file.open", err)
			e.Cause += "; the file was made, and stays: others may have opened it"
			err = &e
		}
		return transport.FileCard{}, err
	}
	return c.FileCard, nil
}

// check finds contradictions in a spec.
func check(s transport.FileSpec) error {
	wrong := ""
	switch {
	case !filepath.IsAbs(s.Path) || strings.ContainsRune(s.Path, 0):
		wrong = "the path of a file is absolute, without zero bytes"
	case len(s.Path) >= transport.FilePathMax:
		wrong = "the path is longer than 4095 bytes"
	case s.Size > 1<<63-1:
		wrong = "no file is that large"
	case s.ReadOnly && (s.Create || s.Truncate):
		wrong = "a file that is opened read-only is neither made nor truncated"
	default:
		return nil
	}
	return errs.New(errs.InvalidArgument, "file.open", "%q: %s", s.Path, wrong).
		WithScope(errs.ScopeSlice, errs.SideLocal)
}

// openOrMake opens the file, and says whether this call has made it.
func (s *Settings) openOrMake(ctx context.Context, spec transport.FileSpec) (fd int, made bool, err error) {
	flags := unix.O_RDWR
	if spec.ReadOnly {
		flags = unix.O_RDONLY
	}
	fd, err = s.open(spec.Path, flags, 0)
	for i := 0; i < retryMost && spec.Create && err == unix.ENOENT; i++ { // again: others may remove it meanwhile
		if made, err = s.make(ctx, spec); err != nil {
			return -1, false, err
		}
		fd, err = s.open(spec.Path, flags, 0)
	}
	if err != nil {
		e := trouble("file.open", spec.Path, err)
		if e.Code == errs.NotFound && e.Hint == "" && !spec.Create {
			e.Hint = "create=True makes it"
		}
		return -1, false, e
	}
	return fd, made, nil
}

// make makes the file, unless there is one of its name by now.
func (s *Settings) make(ctx context.Context, spec transport.FileSpec) (made bool, err error) {
	if spec.Size > 0 {
		if made, done, err := s.makeWhole(ctx, spec); done || err != nil {
			return made, err
		}
	}
	fd, err := s.open(spec.Path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	switch err {
	case nil:
		return true, unix.Close(fd)
	case unix.EEXIST:
		return false, nil
	}
	return false, trouble("file.open", spec.Path, err)
}

// makeWhole gives a file its size before its name. Makers in one folder take turns: else each of those that make the
// same file would reserve its space. Where the folder or the file system does not let it, it is not done.
func (s *Settings) makeWhole(ctx context.Context, spec transport.FileSpec) (made, done bool, err error) {
	at := strings.LastIndexByte(spec.Path, '/') + 1
	name := spec.Path[at:]
	folder, err := s.open(spec.Path[:at]+".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false, false, nil
	}
	defer unix.Close(folder) // ends the turn
	fd, err := unix.Openat(folder, ".", unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC|unix.O_LARGEFILE, 0o600)
	if err != nil {
		return false, false, nil
	}
	defer unix.Close(fd)
	takeLock(ctx, func() error { return unix.Flock(folder, unix.LOCK_EX|unix.LOCK_NB) }) // another program may have it
	var st unix.Stat_t
	if unix.Fstatat(folder, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return false, true, nil
	}
	c := &card{transport.FileCard{Path: spec.Path}}
	spec.Truncate = false
	if err := c.resize(ctx, fd, spec); err != nil {
		return false, false, err
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), folder, name, unix.AT_SYMLINK_FOLLOW)
	return err == nil, err == nil || err == unix.EEXIST, nil
}

// open opens a path without waiting for the other end of a FIFO. With roots the kernel resolves the path below one of
// them: a path that leaves it by "..", by a link or by a rename in the same moment gets EXDEV.
func (s *Settings) open(path string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_LARGEFILE),
		Mode: uint64(mode)}
	folder, below := unix.AT_FDCWD, path
	if len(s.Roots) > 0 {
		root, rest := s.below(path)
		if root == "" {
			return -1, errs.New(errs.PermissionDenied, "file.open",
				"%s is not below transports/file/roots, which is %q", path, s.Roots).
				WithScope(errs.ScopeSlice, errs.SideLocal)
		}
		var err error
		if folder, err = unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return -1, err
		}
		defer unix.Close(folder)
		below = strings.TrimLeft(rest, "/")
		how.Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS
	}
	fd := -1
	err := retry(func() (err error) {
		if len(s.Roots) > 0 {
			fd, err = unix.Openat2(folder, below, &how)
		} else {
			fd, err = unix.Openat(folder, below, int(how.Flags), mode) // older kernels and sandboxes know no openat2
		}
		return err
	})
	return fd, err
}

// below returns the folder of the longest root that a path begins with, and the rest of the path; "" if there is none.
func (s *Settings) below(path string) (folder, rest string) {
	longest := 0
	for _, r := range s.roots {
		real := r.folder()
		for _, name := range [...]string{r.name, real} {
			prefix := strings.TrimSuffix(name, "/") + "/"
			if strings.HasPrefix(path, prefix) && len(prefix) > longest {
				longest, folder, rest = len(prefix), real, path[len(prefix):]
			}
		}
	}
	return folder, rest
}

// retryMost bounds how often a call that is only disturbed is made again.
const retryMost = 64

// retry makes a system call again while it is only disturbed: by a signal, or by a rename while a path was resolved.
func retry(call func() error) error {
	err := call()
	for i := 0; i < retryMost && (err == unix.EINTR || err == unix.EAGAIN); i++ {
		err = call()
	}
	return err
}

// identify fills in the file's identity, and refuses all but regular files and block devices.
func (c *card) identify(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return trouble("file.open", c.Path, err)
	}
	c.Device, c.Inode, c.Size = st.Dev, st.Ino, uint64(st.Size)
	c.BornNs = birthOf(fd)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFBLK:
		end, err := unix.Seek(fd, 0, unix.SEEK_END)
		if err != nil {
			return trouble("file.open", c.Path, err)
		}
		c.Size = uint64(end)
		return nil
	}
	return errs.New(errs.InvalidArgument, "file.open", "%s is %s, not a regular file", c.Path,
		kinds[st.Mode&unix.S_IFMT]).
		WithScope(errs.ScopeSlice, errs.SideRemote)
}

// birthOf returns the time at which a file was made, or 0 where that does not tell it from the next file of its number.
// overlayfs gives a file of a lower layer another birth, and the same number, when somebody opens it for writing.
func birthOf(fd int) uint64 {
	var birth unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &birth) != nil || birth.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return 0
	}
	return uint64(birth.Btime.Sec)*1e9 + uint64(birth.Btime.Nsec)
}

var kinds = map[uint32]string{unix.S_IFDIR: "a folder", unix.S_IFIFO: "a FIFO", unix.S_IFSOCK: "a socket",
	unix.S_IFCHR: "a character device", unix.S_IFLNK: "a symbolic link"}
