package plugin

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

var rewrite = flag.Bool("rewrite", false, "write the codes of errors into the header instead of comparing them")

func TestTheHeaderHasTheCodesOfErrors(t *testing.T) {
	const (
		header = "include/tent_transport.h"
		begin  = "/* Codes of errors: written by go test ./transports/plugin -rewrite. */\n"
		end    = "/* End of codes. */\n"
	)
	text, err := os.ReadFile(header)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found)
	var lines []string
	for _, code := range errs.Codes() {
		lines = append(lines, fmt.Sprintf("\tTENT_%s = %d", code, uint16(code)))
	}
	want := before + begin + "enum {\n" + strings.Join(lines, ",\n") + "\n};\n" + end + after
	if *rewrite {
		require.NoError(t, os.WriteFile(header, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "go test ./transports/plugin -run Codes -rewrite")
}
