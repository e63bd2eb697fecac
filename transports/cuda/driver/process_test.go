//go:build cgo

package driver_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// diesIn runs the calling test in a child that must die, and returns its output.
func diesIn(t *testing.T, environment []string) string {
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, self, "-test.run=^"+t.Name()+"$", "-test.count=1")
	c.Env = append(os.Environ(), environment...)
	out, err := c.CombinedOutput()
	require.Error(t, err, "the child lives: %s", out)
	return string(out)
}
