package share

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/tests/leaks"
)

const (
	patience = 10 * time.Second
	interval = 2 * time.Millisecond
	ms       = clock.Time(time.Millisecond)
)

// rig is a name of its own in /dev/shm, which is gone at the end, with the reports of the memories under it.
type rig struct {
	t    *testing.T
	name string
	told chan *errs.Error
}

func newRig(t *testing.T) *rig {
	if err := Check(); err != nil {
		t.Skip(err)
	}
	r := &rig{t: t, name: fmt.Sprintf("/tent-test-%d-%x", os.Getpid(), rand.Uint64()), told: make(chan *errs.Error, 64)}
	before, fds := goleak.IgnoreCurrent(), leaks.Descriptors(t)
	t.Cleanup(func() {
		_ = os.RemoveAll(r.path())
		require.NoError(t, goleak.Find(before))
		require.Equal(t, fds, leaks.Descriptors(t), "open files")
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		require.NotContains(t, string(maps), r.name, "mappings")
	})
	return r
}

func (r *rig) path() string { return folder + r.name }

// optionsOf are those of a memory that reports to nobody.
func optionsOf(name string) Options {
	return Options{Name: name, Branch: "transports/tcp", Interval: interval, Log: slog.New(slog.DiscardHandler),
		Told: func(*errs.Error) {}}
}

func (r *rig) options() Options {
	o := optionsOf(r.name)
	o.Told = func(cause *errs.Error) { r.told <- cause }
	return o
}

func (r *rig) open() *Memory {
	r.t.Helper()
	m, err := Open(context.Background(), r.options())
	require.NoError(r.t, err)
	r.t.Cleanup(m.Close)
	return m
}

// refused opens a memory that must not open, and returns the error.
func (r *rig) refused(change func(*Options)) *errs.Error {
	r.t.Helper()
	o := r.options()
	if change != nil {
		change(&o)
	}
	_, err := Open(context.Background(), o)
	require.Error(r.t, err)
	return errs.From("", err)
}

// device returns one that takes part.
func (r *rig) device(m *Memory, nic string) *Device {
	r.t.Helper()
	d := m.Device("tcp", nic)
	r.until("attached", func() bool { return d.at.Load() != nil })
	return d
}

// until waits for a condition, which runs on the test's goroutine: a Device is for one at a time.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for late := time.After(patience); !ok(); {
		select {
		case <-late:
			r.t.Fatal("waited in vain for: " + what)
		case <-time.After(time.Millisecond):
		}
	}
}

// next returns the next report.
func (r *rig) next() *errs.Error {
	r.t.Helper()
	select {
	case cause := <-r.told:
		return cause
	case <-time.After(patience):
		r.t.Fatal("nothing is told")
		return nil
	}
}

// content is the file as it is, "" if there is none.
func (r *rig) content() string {
	b, err := os.ReadFile(r.path())
	if err != nil {
		require.ErrorIs(r.t, err, os.ErrNotExist)
	}
	return string(b)
}

func (r *rig) write(text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.path(), []byte(text), 0o600))
}

// claim claims slots for one interval.
func claim(d *Device, class int, now clock.Time) { d.Claim(class, now.Add(interval), now) }

func words(list ...uint64) string {
	var b strings.Builder
	for _, w := range list {
		for i := range 8 {
			b.WriteByte(byte(w >> (8 * i)))
		}
	}
	return b.String()
}
