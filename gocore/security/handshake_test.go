package security

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A peer has spoken and hung up while this process was stopped. Its socket belongs to nobody by then, and that is no
// reason to refuse it.
func TestAPeerThatHasSpokenAndHungUpIsNotRefused(t *testing.T) {
	for name, goOn := range map[string]bool{"it hung up": false, "it goes on": true} {
		here, there := net.Pipe()
		given := &NotAdmitted{unowned: true, Reason: "nobody"}
		go func() {
			_, _ = there.Write(make([]byte, 2000))
			if !goOn {
				_ = there.Close()
			}
		}()
		limit := time.Minute
		if goOn {
			limit = 10 * time.Millisecond
		}
		err := lastWord(here, limit, given)
		if goOn {
			require.Same(t, given, err, name)
		} else {
			require.ErrorIs(t, err, io.EOF, name)
		}
		require.NoError(t, here.Close())
		_ = there.Close()
	}
}
