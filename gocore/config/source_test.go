package config

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// Settings come through a pipe, as by <(...) in a shell, piece by piece. A FIFO without a writer is an error at once.
func TestSettingsComeThroughAPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	_, err := Load(birdsOnly, fifo)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "nobody writes into it")

	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	written := make(chan error, 1)
	go func() {
		var err error
		for _, piece := range []string{`{"name": `, `"decode"`, "}"} {
			if err == nil {
				_, err = w.WriteString(piece)
			}
		}
		_ = w.Close()
		written <- err
	}()
	c, err := Load(birdsOnly, fmt.Sprintf("/proc/self/fd/%d", r.Fd()))
	require.NoError(t, err)
	require.NoError(t, <-written)
	require.Equal(t, "decode", c.Engine.Name)
}

// A writer that never ends is waited for until the limit.
func TestAPipeThatDoesNotEndHasALimit(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = w.WriteString("{")
	require.NoError(t, err)
	_, err = readFile(fmt.Sprintf("/proc/self/fd/%d", r.Fd()), time.Millisecond)
	require.ErrorContains(t, err, "has not ended within 1ms")
}
