package config

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

// Each engine of a process reads the variable, and all of them have the settings of its pipe. One that another program
// has read is an error.
func TestThePipeOfAVariableIsReadOnce(t *testing.T) {
	name := func(path string) (string, error) {
		c, err := Load(Options{Transports: birdsOnly.Transports, Env: env("TENT_CONF", path)})
		if err != nil {
			return "", err
		}
		return c.Engine.Name, nil
	}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	_, err = w.WriteString(`{"name": "decode"}`)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	path := fmt.Sprintf("/proc/self/fd/%d", r.Fd())
	var readers sync.WaitGroup
	var found [8]string
	for i := range found {
		readers.Go(func() {
			var err error
			if found[i], err = name(path); err != nil {
				found[i] = err.Error()
			}
		})
	}
	readers.Wait()
	for _, got := range found {
		require.Equal(t, "decode", got)
	}

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	_, err = name(fifo)
	require.ErrorContains(t, err, "was read already", "it is not the pipe of before")
	for _, want := range []string{"prefill", "router"} { // its text of now counts
		keeps, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0) // without a reader the text would go
		require.NoError(t, err)
		writer, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = fmt.Fprintf(writer, `{"name": %q}`, want)
		require.NoError(t, err)
		require.NoError(t, writer.Close())
		got, err := name(fifo)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, keeps.Close())
	}
}

// A writer that never ends is waited for until the limit.
func TestAPipeThatDoesNotEndHasALimit(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = w.WriteString("{")
	require.NoError(t, err)
	_, _, err = readFile(fmt.Sprintf("/proc/self/fd/%d", r.Fd()), time.Millisecond)
	require.ErrorContains(t, err, "has not ended within 1ms")
}
