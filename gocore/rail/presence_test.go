package rail

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPresence plays every sign in every state; the second word of a line is the sign, the last one the state after it.
func TestPresence(t *testing.T) {
	for _, c := range []struct {
		from Presence
		sign Sign
		to   Presence
	}{
		{Present, Heard, Present}, {Present, Missed, Silent}, {Present, Left, Gone},
		{Silent, Heard, Present}, {Silent, Missed, Silent}, {Silent, Left, Gone},
		{Gone, Heard, Gone}, {Gone, Missed, Gone}, {Gone, Left, Gone},
	} {
		p := c.from
		require.Equal(t, c.from != c.to, p.Observe(c.sign), "%v %v", c.from, c.sign)
		require.Equal(t, c.to, p, "%v %v", c.from, c.sign)
	}
}
