package errs

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A limit of the system may pass, so inside nothing is decided by it. The user is told of no defect.
func TestALimitOfTheSystemIsNoDefect(t *testing.T) {
	for errno, want := range map[syscall.Errno]Code{
		syscall.EMFILE: TooManyRequests, syscall.ENFILE: TooManyRequests, syscall.ENOMEM: OutOfMemory,
		syscall.EINVAL: Internal,
	} {
		e := From("listen", fmt.Errorf("socket: %w", errno))
		require.Equal(t, Internal, e.Code)
		require.False(t, e.Permanent(), "%v may pass", errno)
		require.Equal(t, want.String(), e.Record().Code, errno.Error())
		require.Equal(t, want == TooManyRequests, e.Record().Hint != "", "the cure of %v", errno)
		require.ErrorIs(t, e, errno)
		chosen := Wrap(RpcServiceError, "listen", errno)
		require.Equal(t, RpcServiceError.String(), chosen.Record().Code, "a code that was chosen stays")
		require.Equal(t, e.Record().Hint, chosen.Record().Hint, "and has the cure all the same")
	}
}
