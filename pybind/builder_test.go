package pybind

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
)

// closes ends an engine, with all that belongs to its number.
func closes(t *testing.T, id int64) {
	_, err := Close(id, 1000, true)
	require.NoError(t, err)
	_, err = Forget(id)
	require.NoError(t, err)
}

// A call goes back for other transfers when its builder ends, so a thread that still adds to it would add to those.
func TestABuilderIsOfOneThreadAtATime(t *testing.T) {
	id, err := Open("", "", "", "")
	require.NoError(t, err)
	t.Cleanup(func() { closes(t, id) })
	o, err := find(id)
	require.NoError(t, err)
	open := func() int64 {
		c, err := begin(o.engine, engine.Terms{})
		require.NoError(t, err)
		return o.builders.add(c)
	}
	wrong := errors.New("wrong")
	for name, second := range map[string]func(int64) error{
		"adds":    func(n int64) error { return o.builders.use(n, func(*engine.Call) error { return nil }) },
		"commits": func(n int64) error { _, err := Commit(id, n, 0); return err },
	} {
		n := open()
		used := func(*engine.Call) error {
			require.ErrorContains(t, second(n), "another thread is using it", name)
			return wrong
		}
		if name == "adds" {
			require.ErrorIs(t, o.builders.use(n, used), wrong, "the first thread does not notice")
			_, err := Discard(id, n)
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, o.builders.use(n, used), errUsedUp, "the batch has ended")
		}
		require.ErrorIs(t, o.builders.use(n, used), errUsedUp, name)
	}
	n := open()
	require.ErrorIs(t, o.builders.use(n, func(*engine.Call) error {
		_, err := Discard(id, n)
		return err
	}), errUsedUp)
	require.Empty(t, o.builders.byID)
}
