//go:build cgo

package driver

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The compiler of kernels is not on every machine, so the text that it made names its sources by their hash.
func TestTheKernelIsOfItsSources(t *testing.T) {
	hash := sha256.New()
	for _, name := range []string{"copy.cu", "copy.h"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		_, _ = hash.Write(text)
	}
	first, _, _ := strings.Cut(copyPTX, "\n")
	require.Contains(t, first, fmt.Sprintf("SHA-256 %x", hash.Sum(nil)), "run tools/ptx.py")
	require.Contains(t, copyPTX, "\n.version 6.0\n.target sm_70\n", "drivers refuse a newer one than they know")
	require.Contains(t, copyPTX, "\n.visible .entry tent_copy(")
}
