package engine

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAProgramWithMoreRightsThanItsCallerReadsNoEnvironment(t *testing.T) {
	vector := func(secure uintptr) func() ([][2]uintptr, error) {
		return func() ([][2]uintptr, error) { return [][2]uintptr{{6, 4096}, {atSecure, secure}}, nil }
	}
	broken := func() ([][2]uintptr, error) { return nil, errors.New("no vector") }
	require.True(t, isPrivileged(false, vector(1)), "capabilities of the file")
	require.True(t, isPrivileged(true, vector(0)))
	require.True(t, isPrivileged(true, broken))
	require.False(t, isPrivileged(false, vector(0)))
	require.False(t, isPrivileged(false, broken))

	_, err := unix.Auxv()
	require.NoError(t, err, "the vector of this process")
	require.False(t, privileged, "this test")
	given := map[string]string{"TENT_CONF": "y"}
	require.Equal(t, "y", EnvironmentOf(given)("TENT_CONF"))
	require.Empty(t, EnvironmentOf(nil)("TENT_CONF"))
	defer func(was bool) { privileged = was }(privileged)
	privileged = true
	require.Nil(t, EnvironmentOf(given))
}
