package vmem

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// files answers with texts by path.
func files(texts map[string]string) Files {
	return func(path string) ([]byte, error) {
		if text, found := texts[path]; found {
			return []byte(text), nil
		}
		return nil, os.ErrNotExist
	}
}

const (
	machine = "MemTotal: 4096 kB\nMemAvailable:    2048 kB\nSwapFree:  1024 kB\n"
	mounts2 = "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n25 1 0:2 / /proc rw - proc proc rw\n"
	mounts1 = "34 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"35 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
)

func TestTheTightestLimitCounts(t *testing.T) {
	const there = `/docker/abc /mnt/a\040b`
	for name, c := range map[string]struct {
		texts map[string]string
		bytes uint64
		limit string // "" for none
	}{
		"nothing known": {nil, 0, ""},
		"the machine":   {map[string]string{"/proc/meminfo": machine}, 3 << 20, "on this machine"},
		"version 2": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "0::/a/b\n", "/proc/self/mountinfo": mounts2,
			"/sys/fs/cgroup/a/b/memory.max": "1000000\n", "/sys/fs/cgroup/a/b/memory.current": "700000\n",
			"/sys/fs/cgroup/a/b/memory.swap.max": "0\n", "/sys/fs/cgroup/a/b/memory.swap.current": "0\n",
			"/sys/fs/cgroup/a/b/memory.stat": "anon 600000\ninactive_file 60000\nactive_file 40000\n",
		}, 400_000, "in the cgroup /sys/fs/cgroup/a/b (limit 1000000 bytes)"},
		"version 2 with swap": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "0::/a\n", "/proc/self/mountinfo": mounts2,
			"/sys/fs/cgroup/a/memory.max": "1000000\n", "/sys/fs/cgroup/a/memory.current": "1000000\n",
			"/sys/fs/cgroup/a/memory.swap.max": "5000\n", "/sys/fs/cgroup/a/memory.swap.current": "2000\n",
		}, 3000, "in the cgroup /sys/fs/cgroup/a "},
		"a group above": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "0::/pod/box\n", "/proc/self/mountinfo": mounts2,
			"/sys/fs/cgroup/pod/box/memory.max": "max\n", "/sys/fs/cgroup/pod/box/memory.current": "9\n",
			"/sys/fs/cgroup/pod/memory.max": "5000\n", "/sys/fs/cgroup/pod/memory.current": "6000\n",
			"/sys/fs/cgroup/pod/memory.swap.max": "0\n",
		}, 0, "in the cgroup /sys/fs/cgroup/pod (limit 5000 bytes)"},
		"no limit": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mounts2,
			"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "6000\n",
		}, 3 << 20, "on this machine"},
		"version 1": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "5:cpu:/z\n4:memory,hugetlb:/box\n0::/\n",
			"/proc/self/mountinfo":                             mounts1,
			"/sys/fs/cgroup/memory/box/memory.limit_in_bytes":  "100000\n",
			"/sys/fs/cgroup/memory/box/memory.usage_in_bytes":  "90000\n",
			"/sys/fs/cgroup/memory/box/memory.stat":            "total_inactive_file 1000\ntotal_active_file 500\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes":      "9223372036854771712\n",
			"/sys/fs/cgroup/memory/memory.usage_in_bytes":      "7\n",
			"/sys/fs/cgroup/memory/box/memory.kmem.tcp.limit":  "3\n",
			"/sys/fs/cgroup/memory/box/deep/memory.swap.max":   "1\n",
			"/sys/fs/cgroup/memory/box/memory.soft_limit_in_b": "1\n",
		}, 11_500, "in the cgroup /sys/fs/cgroup/memory/box (limit 100000 bytes)"},
		"a container that sees its group at the top": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "4:memory:/docker/abc\n",
			"/proc/self/mountinfo":           strings.Replace(mounts1, "/ /sys/fs/cgroup/memory", there, 1),
			"/mnt/a b/memory.limit_in_bytes": "4000\n", "/mnt/a b/memory.usage_in_bytes": "1000\n",
		}, 3000, "in the cgroup /mnt/a b (limit 4000 bytes)"},
		"a container with a path of the host": {map[string]string{
			"/proc/meminfo": machine, "/proc/self/cgroup": "0::/host/path\n",
			"/proc/self/mountinfo":      strings.Replace(mounts2, "0:22 / ", "0:22 /docker/abc ", 1),
			"/sys/fs/cgroup/memory.max": "4000\n", "/sys/fs/cgroup/memory.current": "1000\n",
			"/sys/fs/cgroup/memory.swap.max": "0\n",
		}, 3000, "in the cgroup /sys/fs/cgroup (limit 4000 bytes)"},
		"rubbish": {map[string]string{
			"/proc/meminfo": "MemAvailable\nMemAvailable: many kB\n\x00", "/proc/self/cgroup": "::\n:\n0:\n",
			"/proc/self/mountinfo": "- - -\n1 2 3\n1 2 3 4 5 - cgroup2\n",
		}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			room, known := files(c.texts).Room()
			require.Equal(t, c.limit != "", known)
			require.Equal(t, c.bytes, room.Bytes)
			require.Contains(t, room.Limit, c.limit)
		})
	}
}

func TestThisMachineHasRoom(t *testing.T) {
	room, known := Files(Kernel).Room()
	require.True(t, known)
	require.NotEmpty(t, room.Limit)
}

func BenchmarkRoom(b *testing.B) {
	for b.Loop() {
		_, _ = Files(Kernel).Room()
	}
}

func TestThePoolOfHugePagesIsReadAndNamed(t *testing.T) {
	pool := files(map[string]string{
		"/proc/meminfo": "HugePages_Total: 9\nHugePages_Free: 7\nHugePages_Rsvd: 2\nHugepagesize: 2048 kB\n",
	})
	require.Equal(t, HugePages{Size: 2 << 20, Free: 10 << 20}, pool.HugePages())
	err := pool.NoHugePages(11<<20, unix.ENOMEM)
	require.Equal(t, errs.OutOfMemory, err.Code)
	require.ErrorContains(t, err, "11534336 bytes take 6 huge pages of 2097152 bytes, and 5 are free")
	require.Contains(t, err.Hint, "raise vm.nr_hugepages by 1")

	require.ErrorContains(t, files(nil).NoHugePages(1, unix.EINVAL),
		"1 bytes take 1 huge pages of 2097152 bytes, and 0 are free")
}
