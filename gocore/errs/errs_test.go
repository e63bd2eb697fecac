package errs

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALimitOfTheSystemIsNoDefect(t *testing.T) {
	for errno, want := range map[syscall.Errno]Code{
		syscall.EMFILE: TooManyRequests, syscall.ENFILE: TooManyRequests, syscall.ENOMEM: OutOfMemory,
		syscall.EINVAL: Internal,
	} {
		e := From("listen", fmt.Errorf("socket: %w", errno))
		require.Equal(t, want, e.Code, errno.Error())
		require.ErrorIs(t, e, errno)
		require.Equal(t, RpcServiceError, Wrap(RpcServiceError, "listen", errno).Code, "a code that was chosen stays")
	}
}
