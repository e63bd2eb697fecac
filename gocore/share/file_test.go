package share

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/qos"
)

func TestWhatIsNotOursIsRefusedAndLeftAsItIs(t *testing.T) {
	for name, c := range map[string]struct{ content, says string }{
		"upstream's": {words(magic, 10) + strings.Repeat("m", 48),
			"has version 10 of shared slots, this is version 1001"},
		"empty":      {"", "it begins with 0x0 instead of 0x2025082772805203"},
		"short":      {"abc", "it begins with"},
		"somebody's": {strings.Repeat("text ", 100000), "it begins with"},
		"cut": {words(magic, versionWord(0), 0, 0, 0, 0, 0, 0, uint64(interval), clockID()),
			"has 80 bytes instead of"},
		"a later one": {words(magic, version+1) + strings.Repeat("\x00", fileBytes-16), "has version 1002"},
		"other clocks": {words(magic, versionWord(0), 0, 0, 0, 0, 0, 0, uint64(interval), clockID()+1) +
			strings.Repeat("\x00", fileBytes-80), "another monotonic clock"},
	} {
		r := newRig(t)
		r.write(c.content)
		err := r.refused(nil)
		require.Equal(t, errs.InvalidEntry, err.Code, name)
		require.ErrorContains(t, err, c.says, name)
		require.ErrorContains(t, err, r.path(), name)
		require.ErrorContains(t, err, "set transports/tcp/shared_quota_shm_path to another name", name)
		if name != "other clocks" {
			require.ErrorContains(t, err, "rm -f "+r.path(), name)
		}
		require.True(t, c.content == r.content(), name)
	}
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	r := newRig(t)
	require.NoError(t, os.Mkdir(r.path(), 0o700))
	require.Error(t, r.refused(nil))
	require.NoError(t, os.Remove(r.path()))
	target := filepath.Join(t.TempDir(), "target")
	require.NoError(t, os.Symlink(target, r.path()))
	require.ErrorContains(t, r.refused(nil), "is a symbolic link")
	require.NoFileExists(t, target)
	require.NoError(t, os.Remove(r.path()))
	require.NoError(t, unix.Mkfifo(r.path(), 0o600))
	require.ErrorContains(t, r.refused(nil), "is no regular file")
}

func TestAnotherUsersFileIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	r := newRig(t)
	r.open().Close()
	require.NoError(t, os.Chown(r.path(), 12345, -1))
	err := r.refused(nil)
	require.Equal(t, errs.PermissionDenied, err.Code)
	require.Equal(t, "shared slots: "+r.path()+" belongs to the user with uid 12345, and this process has uid 0; "+
		"processes of one user share slots: set transports/tcp/shared_quota_shm_path to another name", err.Error())
}

func TestTheIntervalIsOneForAll(t *testing.T) {
	r := newRig(t)
	first, second := r.open(), r.open()
	other := func(o *Options) { o.Interval = 5 * time.Millisecond }
	err := r.refused(other)
	require.Equal(t, errs.InvalidArgument, err.Code)
	require.ErrorContains(t, err,
		"transports/tcp/slot_rotation_interval_ms is 5ms, but the processes that share "+r.path()+" have 2ms")
	first.Close()
	require.ErrorContains(t, r.refused(other), "have 2ms", "second is still there")
	second.Close()
	o := r.options()
	other(&o)
	third, failure := Open(context.Background(), o)
	require.NoError(t, failure, "who has left has no say")
	defer third.Close()
	require.ErrorContains(t, r.refused(nil), "have 5ms")
}

func TestAStoppedHolderOfTheTableIsWaitedForOnlySoLong(t *testing.T) {
	r := newRig(t)
	r.open()
	n := naming{path: r.path(), branch: "transports/tcp", interval: interval}
	holder, problem := openFile(&n)
	require.Nil(t, problem)
	require.True(t, holder.lock(devicesAt))
	err := r.refused(nil)
	require.Equal(t, errs.Timeout, err.Code)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, failure := Open(ctx, r.options())
	require.Error(t, failure)
	holder.unlock(devicesAt)
	r.open()
	holder.release()
	unreserve(holder.base)
}

func TestARemovedFileIsFollowedByTheNextOne(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"rm": os.Remove,
		"mv": func(path string) error { return os.Rename(path, path+"-away") },
	} {
		r := newRig(t)
		a, b := r.device(r.open(), "eth0"), r.device(r.open(), "eth0")
		old := a.at.Load()
		require.NoError(t, remove(r.path()))
		newcomer := r.device(r.open(), "eth0")
		r.until(name, func() bool {
			now := clock.Now()
			claim(a, qos.High, now)
			a.Carries(5, now)
			b.Carries(6, now)
			return newcomer.Others(now) == 11 && a.at.Load() != old
		})
		require.Empty(t, r.told, "sharing has never ended")
		require.NotNil(t, old.want(qos.High, 1, 1), "the old file is not touched any more")
		require.True(t, mapped(t, old.base), "but nobody else's memory may come there")
		a.memory.Close()
		require.False(t, mapped(t, old.base))
		_ = os.Remove(r.path() + "-away")
	}
}

// Another program has a lease of the file, which holds an open up for 45 seconds.
func TestALeaseOfTheFileHoldsNobodyUp(t *testing.T) {
	r := newRig(t)
	r.open().Close()
	lessor, err := os.OpenFile(r.path(), os.O_RDONLY, 0)
	require.NoError(t, err)
	defer lessor.Close()
	signal.Ignore(unix.SIGIO) // by which the kernel asks for the lease
	defer signal.Reset(unix.SIGIO)
	_, err = unix.FcntlInt(lessor.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	require.NoError(t, err)
	require.ErrorContains(t, r.refused(nil), "has a lease of another program")
	_, err = unix.FcntlInt(lessor.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	require.NoError(t, err)
	r.open()
}

// A program that replaces the file without end takes no address space without end.
func TestAFileThatIsReplacedWithoutEndIsLeftAlone(t *testing.T) {
	r := newRig(t)
	m := r.open()
	for range replacedMax {
		require.Nil(t, m.View(0).Cause)
		require.NoError(t, os.Remove(r.path()))
		m.settle(t.Context())
	}
	require.ErrorContains(t, m.View(0).Cause, "was replaced 1024 times")
	require.NoError(t, os.RemoveAll(r.path()))
	m.settle(t.Context())
	require.Len(t, m.reserved, replacedMax)
	require.Empty(t, r.content())
}

// mapped reports whether an address is taken.
func mapped(t *testing.T, addr uintptr) bool {
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil && from <= addr && addr < to {
			return true
		}
	}
	return false
}

// The file of a running engine is spoiled in every way that somebody could think of. It goes on alone, says so once,
// and is with the others again when the file is gone.
func TestASpoiledFileEndsSharingAndNothingElse(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string) error
		says  string
	}{
		"cut to nothing": {func(p string) error { return os.Truncate(p, 0) }, "begins with 0x0"},
		"cut to a part":  {func(p string) error { return os.Truncate(p, headerBytes) }, "has 4096 bytes instead of"},
		"cut and filled": {func(p string) error {
			if err := os.Truncate(p, 0); err != nil {
				return err
			}
			return os.Truncate(p, fileBytes)
		}, "begins with 0x0"},
		"overwritten": {func(p string) error { return os.WriteFile(p, []byte("hello there"), 0o600) }, "begins with"},
		"version": {func(p string) error {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt([]byte{10, 0}, atVersion)
				_ = f.Close()
			}
			return err
		}, "has version 10"},
	} {
		r := newRig(t)
		m := r.open()
		a, b := r.device(m, "eth0"), r.device(r.open(), "eth0")
		now := clock.Now()
		claim(a, qos.High, now)
		a.Carries(1, now)
		require.NoError(t, c.spoil(r.path()), name)
		if strings.HasPrefix(name, "cut to") {
			a.Carries(0, now+ms)
			b.Carries(1, now+ms)
			require.Nil(t, b.at.Load(), "who has met a fault looks for no more of them")
		}
		for i := range clock.Time(1000) { // on the data path, at once
			claim(a, qos.High, now+i*ms)
			a.Carries(uint64(i), now+i*ms)
			a.Others(now + i*ms)
			require.Equal(t, now+i*ms+2*ms, a.Claimed(qos.High, now+i*ms), "its own are as ever")
		}
		for range 2 { // a and b
			claim(b, qos.High, clock.Now())
			cause := r.next()
			require.NotNil(t, cause, name)
			require.ErrorContains(t, cause, c.says, name)
			require.ErrorContains(t, cause, "rm -f "+r.path(), name)
		}
		spoiled := r.content()
		for i := range clock.Time(1000) {
			claim(a, qos.High, now+(2000+i)*ms)
			b.Carries(1, now+(2000+i)*ms)
		}
		require.True(t, spoiled == r.content(), "%s: it is not written to any more", name)
		require.ErrorContains(t, m.View(now).Cause, c.says)
		require.Zero(t, a.Others(now+5000*ms))
		require.NoError(t, os.Remove(r.path()))
		r.until(name, func() bool {
			now := clock.Now() + 10000*ms // behind the times above
			a.Carries(5, now)
			claim(b, qos.Low, now)
			return b.Others(now) == 5
		})
		require.Nil(t, r.next(), name)
		require.Nil(t, r.next(), name)
		require.Nil(t, m.View(now).Cause)
		require.Empty(t, r.told, name)
	}
}

// No content of the file is trusted: any bytes are safe.
func FuzzAnyFileIsSafe(f *testing.F) {
	f.Add([]byte(words(magic, versionWord(0), 0, 0, 0, 0, 0, 0, uint64(interval), clockID())))
	f.Add([]byte(strings.Repeat("\xff", 4096)))
	f.Fuzz(func(t *testing.T, rest []byte) {
		r := newRig(t)
		head := words(magic, versionWord(0), 0, 0, 0, 0, 0, 0, uint64(interval), clockID())
		body := append([]byte(head), make([]byte, fileBytes-len(head))...)
		for at := len(head); at < fileBytes && len(rest) > 0; at += len(rest) + 1000 {
			copy(body[at:], rest)
		}
		r.write(string(body))
		d := r.device(r.open(), "eth0")
		now := clock.Now()
		claim(d, qos.Low, now)
		d.Carries(7, now)
		require.LessOrEqual(t, d.Claimed(qos.High, now), now+2*ms)
		require.LessOrEqual(t, d.Others(now), uint64(rowsMax*bytesMost))
	})
}
