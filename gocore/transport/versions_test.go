package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheHighestCommonVersionIsSpoken(t *testing.T) {
	for _, each := range []struct {
		ours, theirs Versions
		highest      uint16
		is           bool
	}{
		{Versions{1, 1}, Versions{1, 1}, 1, true},
		{Versions{1, 1}, Versions{1, 2}, 1, true}, // this engine and the next one
		{Versions{1, 3}, Versions{2, 5}, 3, true},
		{Versions{1, 1}, Versions{2, 3}, 0, false},
		{Versions{}, Versions{}, 0, true},
		{Versions{}, Versions{1, 1}, 0, false},
	} {
		for _, pair := range [][2]Versions{{each.ours, each.theirs}, {each.theirs, each.ours}} {
			highest, is := pair[0].Common(pair[1])
			require.Equal(t, each.is, is, "%v", pair)
			if is {
				require.Equal(t, each.highest, highest, "%v", pair)
			}
		}
	}
	require.Equal(t, "versions 1 to 3", Versions{1, 3}.String())
	require.Equal(t, "version 2", Versions{2, 2}.String())
}
