package architecture

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const giouring = "github.com/pawelgaczynski/giouring"

// Everything of tent links with the linker's check of linknames, but for packages that use giouring: that library needs
// -checklinkname=0, even for its types alone. The flag can go when the second half of this test fails (decision 0130).
func TestTheLinkerChecksAllButOneModule(t *testing.T) {
	link := func(imports ...string) (string, error) {
		folder := t.TempDir()
		var text strings.Builder
		text.WriteString("package main\n\nimport (\n")
		for _, each := range imports {
			text.WriteString("\t_ \"" + each + "\"\n")
		}
		text.WriteString(")\n\nfunc main() {}\n")
		program := filepath.Join(folder, "main.go")
		require.NoError(t, os.WriteFile(program, []byte(text.String()), 0o600))
		// this -ldflags takes the place of the one with -checklinkname=0 in GOFLAGS
		return goCommand(t, "build", "-ldflags=-s -w", "-o", filepath.Join(folder, "program"), program)
	}
	checked, unchecked := packages(t)
	require.Equal(t, []string{module + "/transports/all", module + "/transports/cuda/gds", module + "/transports/file",
		module + "/transports/file/ring"}, unchecked)
	said, err := link(checked...)
	require.NoError(t, err, said)
	said, err = link(giouring)
	require.Error(t, err, "the flag -checklinkname=0 can go")
	require.Contains(t, said, giouring+": invalid reference to syscall.munmap")
}

// packages returns those of the engine and the transports that others may import: without giouring, and with it.
func packages(t *testing.T) (checked, unchecked []string) {
	t.Helper()
	said, err := goCommand(t, "list", "-f", `{{if ne .Name "main"}}{{.ImportPath}} {{join .Deps " "}}{{end}}`,
		"./gocore/...", "./transports/...")
	require.NoError(t, err, said)
	for line := range strings.Lines(said) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.Contains(words[0], "/internal/"):
		case strings.Contains(line, giouring):
			unchecked = append(unchecked, words[0])
		default:
			checked = append(checked, words[0])
		}
	}
	return checked, unchecked
}

// goCommand runs Go at the top of the repository and returns its output, errors behind the rest.
func goCommand(t *testing.T, words ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", words...)
	command.Dir = filepath.Join("..", "..", "..")
	said, err := command.CombinedOutput()
	return string(said), err
}
