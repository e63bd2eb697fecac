package vmem

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pages maps a number of pages side by side.
func pages(t testing.TB, n int) (at uintptr, page int, raw []byte) {
	t.Helper()
	page = unix.Getpagesize()
	raw, err := unix.Mmap(-1, 0, n*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(raw) })
	return uintptr(unsafe.Pointer(&raw[0])), page, raw
}

// TestRangesAreAsTheKernelHasThem asks both ways: by PROCMAP_QUERY, where this kernel has it, and by the text.
func TestRangesAreAsTheKernelHasThem(t *testing.T) {
	at, page, raw := pages(t, 8)
	require.NoError(t, unix.Mprotect(raw[2*page:3*page], unix.PROT_READ))
	require.NoError(t, unix.Mprotect(raw[4*page:5*page], unix.PROT_NONE))
	hole := at + uintptr(6*page)
	require.NoError(t, unix.MunmapPtr(unsafe.Pointer(&raw[6*page]), uintptr(page)))
	text, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	maps := read(bytes.NewReader(text))
	ways := map[string]func(uintptr, uint64) (Use, uintptr){"as it is asked": Range,
		"the text": func(addr uintptr, size uint64) (Use, uintptr) {
			use, at, err := walk(maps.find, addr, size)
			require.NoError(t, err)
			return use, at
		}}
	for name, ask := range ways {
		for _, c := range []struct {
			from, to int // bytes
			use      Use
			first    uintptr
		}{
			{0, 2 * page, ReadWrite, at},
			{1, 2, ReadWrite, at + 1},
			{0, 3 * page, ReadOnly, at + uintptr(2*page)},
			{2*page + 5, 2*page + 6, ReadOnly, at + uintptr(2*page) + 5},
			{3 * page, 4*page + 1, NoAccess, at + uintptr(4*page)},
			{0, 6 * page, NoAccess, at + uintptr(4*page)},
			{0, 6*page + 1, Unmapped, hole},
			{6 * page, 7 * page, Unmapped, hole},
			{5 * page, 8 * page, Unmapped, hole},
		} {
			use, first := ask(at+uintptr(c.from), uint64(c.to-c.from))
			require.Equal(t, c.use, use, "%s: %d to %d", name, c.from, c.to)
			require.Equal(t, c.first, first, "%s: %d to %d", name, c.from, c.to)
		}
		use, first := ask(12345, 10)
		require.Equal(t, Unmapped, use, name)
		require.EqualValues(t, 12345, first)
		use, _ = ask(math.MaxUint64-99, 99)
		require.Equal(t, Unmapped, use, name)
	}
	require.NoError(t, unix.Mprotect(raw[4*page:5*page], unix.PROT_READ))
}

// crowd is the text of a process with many mappings, as one with a large model and its libraries is.
func crowd(mappings int) string {
	var text strings.Builder
	for i := range mappings {
		at := 0x7f0000000000 + i*2*4096
		fmt.Fprintf(&text, "%x-%x r%cxp 00000000 fd:01 %d      /usr/lib/libmodel.so.1\n", at, at+4096, "-w"[i%2], i)
	}
	return text.String() + "a line that no kernel writes\n"
}

// Linux before 6.11 is asked by its text, at each registration. Neither the text nor a look costs memory for each line.
func TestTheTextOfManyMappingsIsReadAtOnce(t *testing.T) {
	const mappings = 4096
	text := crowd(mappings)
	all := read(strings.NewReader(text))
	require.Len(t, all, mappings)
	for i, m := range all {
		require.Equal(t, mapping{uintptr(0x7f0000000000 + i*2*4096), m.start + 4096, ReadOnly + Use(i%2)}, m)
		for at, there := range map[uintptr]bool{m.start - 1: false, m.start: true, m.end - 1: true, m.end: false} {
			got, err := all.find(at)
			require.Equal(t, there, err == nil, "%#x", at)
			require.True(t, !there || got == m)
		}
	}
	require.Less(t, testing.AllocsPerRun(10, func() { read(strings.NewReader(text)) }), mappings/16.0)
}

func BenchmarkManyMappings(b *testing.B) {
	text := crowd(20_000)
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			read(strings.NewReader(text))
		}
	})
	all := read(strings.NewReader(text))
	b.Run("find", func(b *testing.B) {
		for b.Loop() {
			_, _ = all.find(all[len(all)-1].start)
		}
	})
}

// BenchmarkRange looks at a range that nobody has touched. Its length does not matter, its mappings do.
func BenchmarkRange(b *testing.B) {
	for _, size := range []int{1 << 12, 1 << 30} {
		raw, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		require.NoError(b, err)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				_, _ = Range(uintptr(unsafe.Pointer(&raw[0])), uint64(size))
			}
		})
		b.Run(fmt.Sprintf("%d by the text", size), func(b *testing.B) {
			for b.Loop() {
				text, _ := os.ReadFile("/proc/self/maps")
				_, _, _ = walk(read(bytes.NewReader(text)).find, uintptr(unsafe.Pointer(&raw[0])), uint64(size))
			}
		})
		require.NoError(b, unix.Munmap(raw))
	}
}
