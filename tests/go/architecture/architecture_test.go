// Package architecture checks the rules by which this repository is built: the table of imports, the length of files
// and functions, and banned calls. imports_test.go holds the table of imports, code_test.go the rules about code; each
// has its reason, which a failure prints. self_test.go breaks every rule once, on purpose.
package architecture

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func report(t *testing.T, violations []violation) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}

func TestImportsGoDownOnly(t *testing.T) {
	for _, s := range sources(t) {
		report(t, checkEdges(s, edges))
		report(t, checkThirds(s, thirds))
	}
}

func TestTablesHaveNoStaleLine(t *testing.T) {
	all := sources(t)
	for _, line := range stale(all, edges, thirds) {
		t.Errorf("remove from the table: %s", line)
	}
	for folder := range unsafeUsers {
		if !slices.ContainsFunc(all, func(s *source) bool {
			return within(s.folder, folder) &&
				s.imports["unsafe"] != ""
		}) {
			t.Errorf("remove from the table: %s may import unsafe, but does not", folder)
		}
	}
	for _, folder := range pureFolders {
		require.True(t, slices.ContainsFunc(all, func(s *source) bool { return s.folder == folder }),
			"no such package: %s", folder)
	}
}

func TestNoFileIsTooLong(t *testing.T) {
	walk(t, func(name string, text func() string) { report(t, fileLength(name, text())) })
}

func TestLanguageIsPlain(t *testing.T) {
	all := sources(t)
	for _, r := range []struct {
		name  string
		check func(*source) []violation
		bound int
	}{
		{"clauses in who and what", clauses, clausesMax},
		{"plain words", plainEnglish, wordsMax},
		{"first sentences", firstSentence, sentencesMax},
		{"length of lines", lineLength, linesMax},
	} {
		var found []violation
		for _, s := range all {
			found = append(found, r.check(s)...)
		}
		if len(found) > r.bound {
			report(t, found)
			t.Errorf("%s: %d places, more than %d", r.name, len(found), r.bound)
		}
	}
}

func TestCodeFollowsItsRules(t *testing.T) {
	all := sources(t)
	for _, r := range codeRules {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			for _, s := range all {
				report(t, r.check(s))
			}
		})
	}
}
