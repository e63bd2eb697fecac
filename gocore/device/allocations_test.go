package device_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
)

func TestMemoryIsFreedOnceAndByItsOwnSize(t *testing.T) {
	var a device.Allocations[string]
	a.Add(4096, 64, "of the first device")
	require.True(t, a.Begins(4096))
	require.False(t, a.Begins(4097))
	var freed []string
	free := func(facts string) error {
		require.False(t, a.Begins(4096), "the driver may give the address to somebody else now")
		freed = append(freed, facts)
		return nil
	}
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(a.Free("free", 4096, 63, free)))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(a.Free("free", 4097, 64, free)))
	require.NoError(t, a.Free("free", 4096, 64, free))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(a.Free("free", 4096, 64, free)))
	require.Equal(t, []string{"of the first device"}, freed)
}

func TestMemoryThatTheDriverKeepsCanBeFreedAgain(t *testing.T) {
	var a device.Allocations[int]
	a.Add(4096, 64, 1)
	refused := errors.New("not now")
	require.ErrorIs(t, a.Free("free", 4096, 64, func(int) error { return refused }), refused)
	require.NoError(t, a.Free("free", 4096, 64, func(facts int) error {
		require.Equal(t, 1, facts)
		return nil
	}))
}
