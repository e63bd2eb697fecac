package schema

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

// TestGeneratedFilesAreThoseOfTheTable compares every generated file with the table.
func TestGeneratedFilesAreThoseOfTheTable(t *testing.T) {
	files, err := Files()
	require.NoError(t, err)
	for name, want := range files {
		found, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err, "run `go generate ./gocore/request`")
		require.Equal(t, string(want), string(found),
			"%s is not what the table makes: run `go generate ./gocore/request`", name)
	}
}

// TestTheGeneratorIsDeterministic renders twice: an unstable order would make the comparison above fail now and then.
func TestTheGeneratorIsDeterministic(t *testing.T) {
	first, err := Files()
	require.NoError(t, err)
	second, err := Files()
	require.NoError(t, err)
	require.Equal(t, first, second)
}

// TestEveryTermIsComplete looks at each entry of the table for all that the generated files need.
func TestEveryTermIsComplete(t *testing.T) {
	names := map[string]bool{}
	for _, term := range Terms {
		require.NotEmpty(t, term.Name)
		require.False(t, names[term.Name], "%s is declared twice", term.Name)
		names[term.Name] = true
		require.NotEmpty(t, term.Help, term.Name)
		require.NotEmpty(t, term.Takes, term.Name)
		require.NotEmpty(t, term.Default, term.Name)
		require.NotEmpty(t, term.Field, "%s: a term has a field", term.Name)
		require.NotEmpty(t, term.Go, "%s: a field has a type", term.Name)
		if term.Kind == Word {
			require.Equal(t, "NONE", term.Values[0], "%s: 0 is said as None", term.Name)
		}
	}
}
