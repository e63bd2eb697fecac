package architecture

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module = "github.com/tent-engine/tent"
	root   = "../../.."
)

// source is one parsed Go file.
type source struct {
	path      string // from the root of the repository, with "/"
	folder    string // its package: path without the file's name
	test      bool   // *_test.go
	generated bool
	text      string
	positions *token.FileSet
	syntax    *ast.File
	imports   map[string]string // path of a package by the name that the file has for it
}

// violation is one place where a rule is broken.
type violation struct {
	at   string // "path:line"
	what string
	why  string
}

func (v violation) String() string { return fmt.Sprintf("%s: %s, because %s", v.at, v.what, v.why) }

// at makes a violation at a place of a file.
func (s *source) at(p token.Pos, why, format string, args ...any) violation {
	return violation{s.path + ":" + strconv.Itoa(s.positions.Position(p).Line), fmt.Sprintf(format, args...), why}
}

// parse reads one file's text. The self-tests give snippets, with the path at which they would be.
func parse(name, text string) (*source, error) {
	s := &source{path: name, folder: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
		text: text, positions: token.NewFileSet(), imports: map[string]string{}}
	var err error
	if s.syntax, err = parser.ParseFile(s.positions, name, text,
		parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	s.generated = ast.IsGenerated(s.syntax)
	for _, i := range s.syntax.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, err
		}
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		s.imports[name] = p
	}
	return s, nil
}

// selected returns the package and the name of an expression like time.Sleep, "" if it is none. A local variable that
// hides a package's name would be mistaken for it; nobody should write that.
func (s *source) selected(e ast.Expr) (pkg, name string) {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if x, ok := selector.X.(*ast.Ident); ok {
		return s.imports[x.Name], selector.Sel.Name
	}
	return "", ""
}

// within reports whether a package is a folder or below it.
func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

// withinAny reports whether a package is in one of folders.
func withinAny(pkg string, folders []string) bool {
	for _, f := range folders {
		if within(pkg, f) {
			return true
		}
	}
	return false
}

// skipped are folders without sources of ours: build results and environments.
var skipped = map[string]bool{".git": true, ".venv": true, "venv": true, "env": true, "build": true, "dist": true,
	"testdata": true, "node_modules": true}

// walk visits the files of the repository.
func walk(t *testing.T, visit func(name string, text func() string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != root && (skipped[d.Name()] || strings.HasPrefix(d.Name(), ".venv")):
			return filepath.SkipDir
		case d.Type().IsRegular():
			name, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			visit(filepath.ToSlash(name), func() string {
				data, err := os.ReadFile(p)
				require.NoError(t, err)
				return string(data)
			})
		}
		return nil
	})
	require.NoError(t, err)
}

// sources parses every Go file of the repository.
func sources(t *testing.T) []*source {
	t.Helper()
	var all []*source
	walk(t, func(name string, text func() string) {
		if path.Ext(name) != ".go" {
			return
		}
		s, err := parse(name, text())
		require.NoError(t, err)
		all = append(all, s)
	})
	require.NotEmpty(t, all, "no Go file found below %s", root)
	return all
}
