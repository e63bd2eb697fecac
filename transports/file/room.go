package file

import (
	"context"
	"os"
	"path/filepath"
	"strings"
)

// fileSystem is where a doing waits: the mount above a name, or the device of a file that was imported. Zero is for the
// first names. So it is known before anybody asks the disk. A name that leads elsewhere by a symbolic link counts where
// the link is, and takes no place of imported files there.
type fileSystem struct {
	mount  string
	device uint64
}

// room bounds the doings of one file system in the kernel, so that one that hangs keeps no place of another one's.
type room struct {
	places chan struct{}
	users  int // doings that have a place or wait for one; guarded by base.mu
}

// doingMost is the places of a room. A doing has a thread, of which Go gives a process 10,000.
const doingMost = 64

// enterRoom waits for a place, and reports whether there was one before ctx ended.
func (t *base) enterRoom(ctx context.Context, at fileSystem) bool {
	t.mu.Lock()
	r := t.rooms[at]
	if r == nil {
		r = &room{places: make(chan struct{}, doingMost)}
		t.rooms[at] = r
	}
	r.users++
	t.mu.Unlock()
	select {
	case r.places <- struct{}{}: // whether or not ctx has ended
		return true
	default:
	}
	select {
	case r.places <- struct{}{}:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.quitRoom(at)
	return false
}

// leaveRoom gives a place back.
func (t *base) leaveRoom(at fileSystem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	<-t.rooms[at].places // at once: ours is there
	t.quitRoom(at)
}

// quitRoom counts a user less. The caller holds t.mu.
func (t *base) quitRoom(at fileSystem) {
	r := t.rooms[at]
	if r.users--; r.users == 0 {
		delete(t.rooms, at)
	}
}

// fileSystem returns that of a file which was imported.
func (c *card) fileSystem() fileSystem { return fileSystem{device: c.Device} }

// fileSystemOf returns that of a name, from the kernel's table of mounts: no file system is asked. The table is long on
// some hosts, so all names share one while it has places, and where there is no table.
func (t *base) fileSystemOf(path string) fileSystem {
	t.mu.Lock()
	common := t.rooms[fileSystem{}]
	full := common != nil && common.users >= doingMost
	t.mu.Unlock()
	if !full {
		return fileSystem{}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fileSystem{}
	}
	return fileSystem{mount: mountAbove(string(table), filepath.Clean(path))}
}

// unescape reads the characters that proc(5) writes as octal numbers in a table of mounts.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountAbove returns the mount of a table that is nearest above a path.
func mountAbove(table, path string) (nearest string) {
	for line := range strings.Lines(table) {
		fields := strings.SplitN(line, " ", 6)
		if len(fields) < 6 {
			continue
		}
		mount := unescape.Replace(fields[4])
		above := path == mount || strings.HasPrefix(path, strings.TrimSuffix(mount, "/")+"/")
		if above && len(mount) > len(nearest) {
			nearest = mount
		}
	}
	return nearest
}
