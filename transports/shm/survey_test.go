package shm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

func TestTheSurveyNamesThePagesOfMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shmem_enabled")
	small := "are small, by the kernel's policy never: `echo advise > " + file
	for text, said := range map[string]string{
		"always within_size advise [never] deny force\n": small,
		"always within_size [advise] never deny force\n": "huge where the kernel has some, by its policy advise",
		"[always] within_size advise never deny force\n": "huge where the kernel has some, by its policy always",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Contains(t, pagesBy(file), said)
	}
	require.Empty(t, pagesBy(file+"-of-a-kernel-without-huge-pages"))
}

func TestAllocatedMemoryAsksForHugePages(t *testing.T) {
	a, _, _ := newAlone(t, Settings{})
	if pagesBy(hugePolicy) == "" {
		t.Skip("this kernel has no huge pages of shared memory")
	}
	for size, asks := range map[uint64]bool{hugeLeast: true, 3*hugeLeast + 1: true, hugeLeast / 2: false} {
		r, err := a.tr.Allocate(transport.Allocation{Size: size, Location: "cpu:0"})
		require.NoError(t, err)
		require.Equal(t, asks, strings.Contains(flagsOf(t, r.Addr), " hg"), "%d bytes", size)
		require.NoError(t, a.tr.Free(r))
	}
}
