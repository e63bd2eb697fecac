package vmem

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Room is the memory that a process can still get, by the tightest of its limits.
type Room struct {
	Bytes uint64
	Limit string // names the limit, for an error's text
}

// Files reads the kernel's files about memory.
type Files func(path string) ([]byte, error)

// Kernel reads the files of this process.
func Kernel(path string) ([]byte, error) { return os.ReadFile(path) }

// Room returns the tightest limit, and false where the kernel says none. Page cache counts as free: the kernel gives
// it back before it refuses memory. It costs some 300 µs.
//
// Pages of a memfd count like any others. The size of /dev/shm does not bound them: a memfd lies on a mount of the
// kernel's own.
func (read Files) Room() (tightest Room, known bool) {
	machine := read.fields("/proc/meminfo", 1<<10)
	swap := machine["SwapFree:"]
	if free, found := machine["MemAvailable:"]; found {
		tightest = Room{free + swap, "on this machine (MemAvailable and SwapFree of /proc/meminfo)"}
		known = true
	}
	for _, h := range read.hierarchies() {
		for _, folder := range h.folders() {
			free, limit, limited := read.group(folder, h.unified, swap)
			if limited && (!known || free < tightest.Bytes) {
				tightest = Room{free, fmt.Sprintf("in the cgroup %s (limit %d bytes)", folder, limit)}
				known = true
			}
		}
	}
	return tightest, known
}

// group returns the bytes that are left in one cgroup; false where it has no limit.
func (read Files) group(folder string, unified bool, swap uint64) (free, limit uint64, limited bool) {
	names := [...]string{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"}
	if unified {
		names = [...]string{"memory.max", "memory.current", "inactive_file", "active_file"}
	}
	limit, limited = read.number(filepath.Join(folder, names[0]))
	used, known := read.number(filepath.Join(folder, names[1]))
	if !limited || !known || limit >= 1<<62 { // "max" is no number, and version 1 writes one near 2^63
		return 0, 0, false
	}
	stat := read.fields(filepath.Join(folder, "memory.stat"), 1)
	free = limit - min(limit, used-min(used, stat[names[2]]+stat[names[3]]))
	if most, bounded := read.number(filepath.Join(folder, "memory.swap.max")); unified && bounded {
		taken, _ := read.number(filepath.Join(folder, "memory.swap.current"))
		swap = min(swap, most-min(most, taken))
	}
	if unified {
		free += swap
	}
	return free, limit, true
}

// hierarchy is a mount of cgroups that controls memory, and our place in it.
type hierarchy struct {
	mount, root, path string // root is the cgroup that the mount shows at its top
	unified           bool   // version 2
}

// folders are the cgroup of this process and those above it, as far as the mount shows them.
func (h hierarchy) folders() (list []string) {
	below, found := strings.CutPrefix(h.path, strings.TrimSuffix(h.root, "/"))
	if !found { // a container without a cgroup namespace of its own: the mount shows its cgroup at the top
		below = ""
	}
	top := filepath.Clean(h.mount)
	for at := filepath.Join(top, below); len(at) >= len(top); at = filepath.Dir(at) {
		if list = append(list, at); at == "/" {
			break
		}
	}
	return list
}

// hierarchies joins the mounts of cgroups, which proc_pid_mountinfo(5) describes, with our places in /proc/self/cgroup.
func (read Files) hierarchies() (list []hierarchy) {
	unified, legacy, named := "", "", false
	for line := range read.lines("/proc/self/cgroup") {
		if part := strings.SplitN(line, ":", 3); len(part) == 3 {
			switch {
			case part[0] == "0" && part[1] == "":
				unified = part[2]
			case holdsMemory(part[1]):
				legacy, named = part[2], true
			}
		}
	}
	for line := range read.lines("/proc/self/mountinfo") {
		head, tail, found := strings.Cut(line, " - ")
		place, what := strings.Fields(head), strings.Fields(tail)
		if !found || len(place) < 5 || len(what) < 3 {
			continue
		}
		h := hierarchy{unescape(place[4]), unescape(place[3]), unified, what[0] == "cgroup2"}
		if what[0] == "cgroup" && named && holdsMemory(what[2]) {
			h.path = legacy
		} else if !h.unified || unified == "" {
			continue
		}
		list = append(list, h)
	}
	return list
}

func holdsMemory(controllers string) bool {
	return slices.Contains(strings.Split(controllers, ","), "memory")
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func (read Files) number(path string) (n uint64, ok bool) {
	text, err := read(path)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// fields reads lines of a name and a number.
func (read Files) fields(path string, unit uint64) map[string]uint64 {
	all := map[string]uint64{}
	for line := range read.lines(path) {
		if part := strings.Fields(line); len(part) >= 2 {
			if n, err := strconv.ParseUint(part[1], 10, 64); err == nil {
				all[part[0]] = n * unit
			}
		}
	}
	return all
}

func (read Files) lines(path string) iter.Seq[string] {
	text, err := read(path)
	if err != nil {
		text = nil
	}
	return strings.SplitSeq(string(text), "\n")
}
