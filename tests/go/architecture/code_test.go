package architecture

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"unicode"
)

// Bounds of size. The usual weakness of good code bases is one orchestrator that grows to thousands of lines.
const (
	fileLinesMax     = 500
	functionLinesMax = 70
)

// pureFolders hold the core: a state machine that is told the time and starts nothing.
var pureFolders = []string{"gocore/dispatch", "gocore/plan", "gocore/rail", "gocore/qos"}

// codeRule is a rule about the content of a file.
type codeRule struct {
	name  string
	check func(*source) []violation
}

var codeRules = []codeRule{
	{"function length", functionLength},
	{"no sleep in tests",
		banCalls(forTests, "a sleep is either too short or too long: use synctest, a given now, or wait for an event",
			"time.Sleep")},
	{"goroutines of tests go on", requireOfTheTest},
	{"time is an argument",
		banUses(isPure, "the core is told the time, so that a day of failures is a test of microseconds",
			"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.Tick",
			"time.NewTimer", "time.NewTicker", module+"/gocore/clock.Now")},
	{"no goroutine in the core", noGoroutine},
	{"no I/O in the core", banImports(isPure,
		"the core is a state machine without lock and I/O: gocore/engine is the shell that has them",
		"sync", "sync/atomic", "os", "net", "context", "io", "syscall", "log", "log/slog")},
	{"unsafe stays at the edge", unsafeAtTheEdge},
	{"addresses of slices are mem's", addressesOfSlices},
	{"the environment is read once", banCalls(func(s *source) bool {
		return !forTests(s) &&
			s.folder != "gocore/config"
	},
		"settings come by gocore/config, which says where each came from", "os.Getenv", "os.LookupEnv", "os.Environ")},
	{"no side effects at import", noInit},
	{"standard output is the user's", banCalls(func(s *source) bool { return !forTests(s) },
		"a library logs through what it was given",
		"fmt.Print", "fmt.Printf", "fmt.Println", "log.Print", "log.Printf", "log.Println", "log.Fatal", "log.Fatalf")},
	{"words of the glossary", glossary},
	{"the core names no transport", namesNoTransport},
	{"cgo needs no path of the source", noSourcePath},
}

func isPure(s *source) bool { return !s.test && slices.Contains(pureFolders, s.folder) }

// fileLength checks any text file with code in it.
func fileLength(name, text string) []violation {
	lines := strings.Count(text, "\n")
	generated := strings.Contains(text[:min(len(text), 400)], "Code generated") || strings.HasSuffix(name, ".pb.go")
	if lines <= fileLinesMax || generated || !slices.Contains([]string{".go", ".py", ".c", ".cc", ".h", ".sh"},
		path.Ext(name)) {
		return nil
	}
	return []violation{{name, "more than 500 lines", "one noun a file is found and read at once"}}
}

func functionLength(s *source) (out []violation) {
	if s.generated {
		return nil
	}
	for _, d := range s.syntax.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if lines := s.positions.Position(f.End()).Line - s.positions.Position(f.Pos()).Line +
			1; lines > functionLinesMax {
			out = append(out, s.at(f.Pos(), "the parent decides, leaves are pure: split it",
				"%s has %d lines, more than %d", f.Name.Name, lines, functionLinesMax))
		}
	}
	return out
}

// banCalls forbids calls of functions; handing one over as a value is allowed.
func banCalls(where func(*source) bool, why string, functions ...string) func(*source) []violation {
	return ban(where, why, functions, func(n ast.Node) ast.Expr {
		if c, ok := n.(*ast.CallExpr); ok {
			return c.Fun
		}
		return nil
	})
}

// banUses forbids functions also as values.
func banUses(where func(*source) bool, why string, functions ...string) func(*source) []violation {
	return ban(where, why, functions, func(n ast.Node) ast.Expr {
		e, _ := n.(ast.Expr)
		return e
	})
}

func ban(where func(*source) bool, why string, functions []string,
	pick func(ast.Node) ast.Expr) func(*source) []violation {
	return func(s *source) (out []violation) {
		if !where(s) || s.generated {
			return nil
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if n == nil {
				return false
			}
			if pkg, name := s.selected(pick(n)); pkg != "" && slices.Contains(functions, pkg+"."+name) {
				out = append(out, s.at(n.Pos(), why, "%s.%s is banned here", path.Base(pkg), name))
			}
			return true
		})
		return out
	}
}

func banImports(where func(*source) bool, why string, packages ...string) func(*source) []violation {
	return func(s *source) (out []violation) {
		for _, i := range s.syntax.Imports {
			if p := strings.Trim(i.Path.Value, `"`); where(s) && slices.Contains(packages, p) {
				out = append(out, s.at(i.Pos(), why, "import of %s is banned here", p))
			}
		}
		return out
	}
}

func noGoroutine(s *source) (out []violation) {
	const why = "the core is turned by whoever has work; a goroutine in it would need the lock that it must not know"
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.GoStmt:
			out = append(out, s.at(n.Pos(), why, "a go statement is banned here"))
		case *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
			out = append(out, s.at(n.Pos(), why, "a Go channel is banned here"))
		}
		return isPure(s)
	})
	if !isPure(s) {
		return nil
	}
	return out
}

// requireOfTheTest finds require in a function that another goroutine than the test's runs.
func requireOfTheTest(s *source) (out []violation) {
	const why = "require ends its goroutine alone, and the test goes on or hangs: assert there"
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		var started *ast.CallExpr
		switch n := n.(type) {
		case *ast.GoStmt:
			started = n.Call
		case *ast.CallExpr:
			if f, is := n.Fun.(*ast.SelectorExpr); is && f.Sel.Name == "Go" {
				started = n
			}
		}
		if started == nil || !forTests(s) {
			return true
		}
		ast.Inspect(started, func(n ast.Node) bool {
			e, _ := n.(ast.Expr)
			if pkg, name := s.selected(e); pkg == "github.com/stretchr/testify/require" {
				out = append(out, s.at(n.Pos(), why, "require.%s in a goroutine", name))
			}
			return true
		})
		return false
	})
	return out
}

// unsafeUsers may import unsafe; each with the reason that was accepted.
var unsafeUsers = map[string]string{
	"pybind/capi":     "pointers of C come and go here; Go owns nothing behind them",
	"gocore/mem":      "turns foreign addresses into bytes at the point of use",
	"gocore/dispatch": "finds the attempt around a slice that comes back from a transport",
	"gocore/traps":    "hands structs of signal handlers to system calls",
	"gocore/vmem":     "hands addresses to system calls",
	"gocore/engine":   "maps the page and the packed arrays that Python shares",
	"transports":      "system calls and vendor libraries take addresses",
	"tests":           "measurements and tests hand over addresses as Python does",
}

func unsafeAtTheEdge(s *source) (out []violation) {
	if s.generated || s.test {
		return nil
	}
	for folder := range unsafeUsers {
		if within(s.folder, folder) {
			return nil
		}
	}
	return banImports(func(*source) bool { return true },
		"an address that the garbage collector may see must not come from everywhere", "unsafe")(s)
}

// addressesOfSlices finds uintptr(unsafe.Pointer(unsafe.SliceData(s))).
func addressesOfSlices(s *source) (out []violation) {
	if s.folder == "gocore/mem" {
		return nil
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		inner := n
		for _, name := range []string{"uintptr", "Pointer", "SliceData"} {
			c, ok := inner.(*ast.CallExpr)
			if !ok || len(c.Args) != 1 || calledName(c) != name {
				return true
			}
			inner = c.Args[0]
		}
		out = append(out, s.at(n.Pos(), "a slice on a stack moves when that grows: mem.AddressOf keeps it on the heap",
			"the address of a slice as a number"))
		return true
	})
	return out
}

// calledName is the name of a called function, without its package.
func calledName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func noInit(s *source) (out []violation) {
	if s.generated || !within(s.folder, "transports") && !within(s.folder, "gocore") {
		return nil
	}
	for _, d := range s.syntax.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			out = append(out, s.at(f.Pos(), "transports/all lists what there is; an import has no side effects",
				"a func init is banned here"))
		}
	}
	return out
}

func noSourcePath(s *source) (out []violation) {
	for _, group := range s.syntax.Comments {
		for _, c := range group.List {
			for line := range strings.Lines(c.Text) {
				if strings.HasPrefix(line, "#cgo ") && strings.Contains(line, "${SRCDIR}") {
					out = append(out, s.at(c.Pos(), "cgo takes no path with a parenthesis: include by a way from the "+
						"package's folder", "${SRCDIR} is banned here"))
				}
			}
		}
	}
	return out
}

// avoided are words for which the glossary has another one.
var avoided = map[string]string{"backend": "transport", "plugin": "transport", "channel": "link, rail or lane",
	"session": "link", "job": "task"}

// glossary checks the exported names of a file: declarations, fields and methods.
func glossary(s *source) (out []violation) {
	if s.test || s.generated {
		return nil
	}
	check := func(names ...*ast.Ident) {
		for _, n := range names {
			for _, word := range words(n.Name) {
				if better, found := avoided[strings.TrimSuffix(word, "s")]; found && n.IsExported() {
					out = append(out, s.at(n.Pos(), "the glossary has one word for one thing: "+better, "%s says %q",
						n.Name, word))
				}
			}
		}
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			check(n.Name)
			return false // names declared inside are local
		case *ast.TypeSpec:
			check(n.Name)
		case *ast.ValueSpec:
			check(n.Names...)
		case *ast.Field:
			check(n.Names...)
		}
		return true
	})
	return out
}

// words splits "NewRDMAChannel" into new, rdma and channel.
func words(name string) (out []string) {
	runes := []rune(name)
	start := 0
	for i := 1; i <= len(runes); i++ {
		end := i == len(runes) || runes[i] == '_' || unicode.IsUpper(runes[i]) &&
			(unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if end {
			out = append(out, strings.ToLower(strings.Trim(string(runes[start:i]), "_")))
			start = i
		}
	}
	return out
}
