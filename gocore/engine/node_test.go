package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

// untouched maps pages that are not there yet.
func untouched(t *testing.T, pages int) (b []byte, addr uintptr, size uint64) {
	b, err := unix.Mmap(-1, 0, pages*unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	require.NoError(t, unix.Madvise(b, unix.MADV_NOHUGEPAGE)) // a page is a page
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b, mem.AddressOf(b), uint64(len(b))
}

// resident counts the pages of a range that are there.
func resident(t *testing.T, b []byte) (n int) {
	there := make([]byte, len(b)/unix.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, mem.AddressOf(b), uintptr(len(b)),
		mem.AddressOf(there))
	require.Zero(t, errno)
	for _, v := range there {
		n += int(v & 1)
	}
	return n
}

func TestTheKernelTellsWherePagesAre(t *testing.T) {
	page := unix.Getpagesize()
	b, addr, size := untouched(t, 300)
	node, share := nodeOf(addr, size)
	if share == shareUnknown {
		t.Skip("the kernel does not tell where pages are: no move_pages(2)")
	}
	require.Equal(t, -1, node)
	require.Zero(t, share)
	require.Zero(t, resident(t, b), "asking makes no page")

	b[0] = 1
	node, share = nodeOf(addr, size)
	require.GreaterOrEqual(t, node, 0)
	require.Equal(t, 1.0, share)
	require.Equal(t, 1, resident(t, b))
	last, _ := nodeOf(addr+uintptr(size)-1, 1)
	require.Equal(t, -1, last)
	b[len(b)-1] = 1
	last, _ = nodeOf(addr+uintptr(size)-1, 1)
	require.GreaterOrEqual(t, last, 0, "one byte is on its page")
	for _, n := range []int{1, 2, 63, 64, 65, 300} {
		for i := range n {
			b[i*page] = 1
		}
		_, share = nodeOf(addr+1, uint64(n*page-1))
		require.Positive(t, share, "%d pages", n)
	}
}

func TestThePolicyOfAMappingTellsWhereItsPagesWillBe(t *testing.T) {
	b, addr, size := untouched(t, 4)
	if _, share := nodeOf(addr, size); share == shareUnknown {
		t.Skip("the kernel does not tell where pages are: no move_pages(2)")
	}
	require.Equal(t, -1, policyOf(addr))
	prefer(addr, size, 0)
	if policyOf(addr) < 0 {
		t.Skip("this kernel keeps no memory policies")
	}
	require.Equal(t, 0, policyOf(addr))
	node, share := nodeOf(addr, size)
	require.Equal(t, 0, node)
	require.Equal(t, 1.0, share)
	require.Zero(t, resident(t, b))
}

func TestRegionsAreCalledAfterTheirNode(t *testing.T) {
	type answer struct {
		node  int
		share float64
	}
	two, one, none := []int{0, 2}, []int{1}, []int(nil)
	for _, c := range []struct {
		name     string
		nodes    []int
		location mem.Location
		kernel   answer
		want     mem.Location
		node     int // of the plan
	}{
		{"all of it on a node", two, "*", answer{2, 1}, "cpu:2", 3},
		{"on the first node", two, "", answer{0, 0.75}, "cpu:0", 1},
		{"host memory somewhere", two, "cpu", answer{2, 1}, "cpu:2", 3},
		{"spread", two, "*", answer{2, 0.6}, "cpu:2", 0},
		{"the kernel does not say", two, "*", answer{-1, shareUnknown}, "cpu:0", 0},
		{"the user knows", two, "cpu:0", answer{2, 1}, "cpu:0", 1},
		{"one node does not matter", one, "*", answer{0, 1}, "cpu:1", 0},
		{"nor if the user says it", one, "cpu:1", answer{1, 1}, "cpu:1", 0},
		{"but one that is not there does", one, "cpu:0", answer{1, 1}, "cpu:0", 1},
		{"a kernel without NUMA", none, "*", answer{0, 1}, "cpu:0", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := numa{c.nodes, func(uintptr, uint64) (int, float64) { return c.kernel.node, c.kernel.share }}
			r := &region{Region: mem.Region{Addr: 4096, Size: 4096, Location: c.location}}
			n.place(r)
			require.Equal(t, c.want, r.Location)
			require.Equal(t, c.node, n.nodeOfPlan(r))
		})
	}
	gpu := &region{Region: mem.Region{Kind: mem.Cuda, Location: "cuda:1"}}
	n := numa{two, func(uintptr, uint64) (int, float64) { panic("memory of GPUs has no pages here") }}
	n.place(gpu)
	require.Equal(t, mem.Location("cuda:1"), gpu.Location)
	require.Zero(t, n.nodeOfPlan(gpu))
}

func TestMemoryThatWasUntouchedIsLookedAtAgain(t *testing.T) {
	touched := false
	n := numa{[]int{0, 1}, func(uintptr, uint64) (int, float64) {
		if !touched {
			return -1, 0
		}
		return 1, 1
	}}
	r := &region{Region: mem.Region{Addr: 4096, Size: 4096, Location: "*"}}
	n.place(r)
	require.Equal(t, mem.Location("cpu:0"), r.Location, "peers were told")
	require.Zero(t, n.nodeOfPlan(r))
	touched = true
	require.Equal(t, 2, n.nodeOfPlan(r))
}
