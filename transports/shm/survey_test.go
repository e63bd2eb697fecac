package shm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

func TestTheSurveyNamesThePagesOfMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shmem_enabled")
	small := "have 4 KiB, by the kernel's policy never: `echo advise > " + file
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
	r, err := a.tr.Allocate(transport.Allocation{Size: 4 << 20, Location: "cpu:0"})
	require.NoError(t, err)
	require.Contains(t, flagsOf(t, r.Addr), " hg")
	require.NoError(t, a.tr.Free(r))
}
