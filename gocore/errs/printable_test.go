package errs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextsOfStrangersArePrintable(t *testing.T) {
	require.Equal(t, "a\uFFFD[2Jb\uFFFDc\uFFFD", Printable("a\x1b[2Jb\nc\u202e", 100))
	require.Equal(t, "größer \uFFFD", Printable("größer \xff", 100))
	require.Equal(t, "xxx\uFFFD", Printable("xxx\u00e9\u00e9", 4), "cut in the middle of a character")
}
