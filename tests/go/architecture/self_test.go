package architecture

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// body makes a file of a package around imports and code.
func body(imports, code string) string {
	var b strings.Builder
	b.WriteString("package x\n")
	for i := range strings.FieldsSeq(imports) {
		b.WriteString("import \"" + i + "\"\n")
	}
	b.WriteString(code + "\n")
	return b.String()
}

func snippet(t *testing.T, name, text string) *source {
	t.Helper()
	s, err := parse(name, text)
	require.NoError(t, err)
	return s
}

// Each rule must catch a file that breaks it, and let its twin pass; a rule without a case here fails too.
func TestEveryCodeRuleCatchesItsViolation(t *testing.T) {
	long := "func f() {\n" + strings.Repeat("\tprintln()\n", functionLinesMax) + "}"
	fits := "func f() {\n" + strings.Repeat("\tprintln()\n", functionLinesMax-2) + "}"
	caught := map[string]bool{}
	for _, c := range []struct{ rule, file, bad, good string }{
		{"function length", "gocore/x/x.go", body("", long), body("", fits)},
		{"no sleep in tests", "gocore/x/x_test.go", body("time", "func f() { time.Sleep(1) }"),
			body("time", "var d time.Duration")},
		{"no sleep in tests", "transports/sim/x.go", "package x\nimport t \"time\"\nfunc f() { t.Sleep(1) }\n",
			body("time", "func f() { time.Now() }")},
		{"goroutines of tests go on", "gocore/x/x_test.go",
			body("github.com/stretchr/testify/require", "func f() { go func() { require.True(nil, true) }() }"),
			body("github.com/stretchr/testify/require", "func f() { func() { require.True(nil, true) }() }")},
		{"goroutines of tests go on", "transports/transporttest/x.go",
			body("github.com/stretchr/testify/require", "func f() { all.Go(func() { require.True(nil, true) }) }"),
			body("github.com/stretchr/testify/assert", "func f() { all.Go(func() { assert.True(nil, true) }) }")},
		{"time is an argument", "gocore/rail/x.go", body("time", "var now = time.Now"),
			body("time", "var d = time.Second")},
		{"time is an argument", "gocore/dispatch/x.go", body(module+"/gocore/clock", "func f() { clock.Now() }"),
			body(module+"/gocore/clock", "func f(now clock.Time) {}")},
		{"no goroutine in the core", "gocore/qos/x.go", body("", "func f() { go f() }"),
			body("", "func f() { defer f() }")},
		{"no goroutine in the core", "gocore/plan/x.go", body("", "var c chan int"), body("", "var c []int")},
		{"no I/O in the core", "gocore/dispatch/x.go", body("sync", "var m sync.Mutex"),
			body("time", "var d time.Duration")},
		{"unsafe stays at the edge", "gocore/segment/x.go", body("unsafe", "var p unsafe.Pointer"),
			body("", "var p uintptr")},
		{"addresses of slices are mem's", "transports/tcp/x.go",
			body("unsafe", "func f(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }"),
			body("unsafe", "func f(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }")},
		{"the environment is read once", "gocore/engine/x.go", body("os", `var e = os.Getenv("X")`),
			body("os", "var e = os.Getenv")},
		{"no side effects at import", "transports/tcp/x.go", body("", "func init() {}"),
			body("", "type t int\nfunc (t) init() {}")},
		{"standard output is the user's", "gocore/meta/x.go", body("fmt", "func f() { fmt.Println() }"),
			body("fmt", "var s = fmt.Sprint(1)")},
		{"words of the glossary", "gocore/x/x.go", body("", "type TCPBackend int"),
			body("", "type TCPLink int\ntype channel int")},
		{"words of the glossary", "gocore/x/x.go", body("", "type T struct { Sessions []int }"),
			body("", "type T struct { Obsession int }")},
		{"the core names no transport", "gocore/engine/x.go", body("", `var on = on("transports/tcp/enable")`),
			body("", "// tcp\nvar on int")},
		{"the core names no transport", "gocore/config/x.go", body("", "type TCP struct{}"),
			body("", "type Rail struct{}")},
		{"the core names no transport", "gocore/control/x.go", body("", `var network = "tcp"`),
			body("", `var network = "tcp4"`)},
		{"cgo needs no path of the source", "pybind/x/x.go",
			"package x\n\n/*\n#cgo CFLAGS: -I${SRCDIR}/include\n*/\nimport \"C\"\n",
			"package x\n\n/*\n#cgo CFLAGS: -O2\n*/\nimport \"C\"\n"},
	} {
		i := -1
		for j := range codeRules {
			if codeRules[j].name == c.rule {
				i = j
			}
		}
		require.GreaterOrEqual(t, i, 0, "no rule %q", c.rule)
		caught[c.rule] = true
		found := codeRules[i].check(snippet(t, c.file, c.bad))
		require.NotEmpty(t, found, "%s does not catch:\n%s", c.rule, c.bad)
		require.Contains(t, found[0].String(), c.file+":")
		require.Contains(t, found[0].String(), ", because ", "a failure gives the reason")
		require.Empty(t, codeRules[i].check(snippet(t, c.file, c.good)), "%s catches the innocent:\n%s", c.rule, c.good)
	}
	for _, r := range codeRules {
		require.True(t, caught[r.name], "rule %q has no case", r.name)
	}
}

func TestLanguageIsJudged(t *testing.T) {
	words := strings.Repeat("word ", sentenceWordsMax)
	wide := strings.Repeat("x", lineColumnsMax-tabColumns-3)
	for _, c := range []struct {
		name      string
		check     func(*source) []violation
		bad, good string
	}{
		{"who", clauses, "// Whoever calls it waits.\nvar x int", "// The whole of it waits.\nvar x int"},
		{"what, inside a function", clauses, "func f() {\n\t// what is left\n}", "func f() {\n\t// the rest\n}"},
		{"a plain word", plainEnglish, "// f tells how long it is.\nfunc f() {}",
			"// f returns its length.\nfunc f() {}"},
		{"two of them", plainEnglish, "// f takes so many bytes.\nfunc f() {}",
			"// f takes that number of bytes.\nfunc f() {}"},
		{"a word of the glossary", plainEnglish, "var x int // of all sessions", "var x int // of all links"},
		{"a long sentence", firstSentence, "// f " + words + "\nfunc f() {}", "// f is short. " + words +
			"\nfunc f() {}"},
		{"of a field", firstSentence, "type t struct {\n\t// x " + words +
			"\n\tx int\n}", "type t struct {\n\tx int // " + words + "\n}"},
		{"before a list", firstSentence, "// f has " + words + "\n//   - one\nfunc f() {}", "// f has:\n//   - " +
			words + "\nfunc f() {}"},
		{"a tag of a field", lineLength, "// " + wide + "and y\nvar x = `x`", "type t struct {\n\tx int `json:\"" +
			wide + "\"`\n}"},
		{"a long line", lineLength, "func f() {\n\t// " + wide + "y\n}", "func f() {\n\t// " + wide + "\n}"},
	} {
		require.Len(t, c.check(snippet(t, "gocore/x/x.go", body("", c.bad))), 1, c.name)
		require.Empty(t, c.check(snippet(t, "gocore/x/x.go", body("", c.good))), c.name)
	}
}

func TestForbiddenEdgesAreCaught(t *testing.T) {
	for _, c := range []struct {
		file, imported string
		forbidden      bool
	}{
		{"gocore/errs/x.go", "gocore/mem", true},
		{"gocore/plan/x.go", "gocore/rail", true},
		{"gocore/plan/x_test.go", "gocore/rail", true},
		{"gocore/dispatch/x.go", "gocore/rail", false},
		{"gocore/dispatch/x.go", "gocore/engine", true},
		{"gocore/engine/x.go", "transports/tcp", true},
		{"gocore/engine/x_test.go", "transports/tcp", false},
		{"transports/tcp/x.go", "gocore/transport", false},
		{"transports/tcp/x.go", "gocore/engine", true},
		{"transports/tcp/x.go", "transports/shm", true},
		{"transports/tcp/x.go", "transports/tcp/wire", false},
		{"transports/tcp/x_test.go", "transports/transporttest", false},
		{"transports/tcp/x.go", "transports/transporttest", true},
		{"transports/all/x.go", "transports/tcp", false},
		{"pybind/x.go", "transports/tcp", true},
		{"gocore/newcomer/x.go", "gocore/errs", true},
	} {
		found := checkEdges(snippet(t, c.file, body(module+"/"+c.imported, "")), edges)
		require.Equal(t, c.forbidden, len(found) > 0, "%s imports %s: %v", c.file, c.imported, found)
	}
}

func TestForeignModulesAreCaught(t *testing.T) {
	for _, c := range []struct {
		file, imported string
		forbidden      bool
	}{
		{"gocore/engine/x.go", "google.golang.org/grpc/codes", true},
		{"gocore/control/x.go", "google.golang.org/grpc/codes", false},
		{"gocore/plan/x.go", "golang.org/x/sys/unix", true},
		{"gocore/plan/x.go", "github.com/stretchr/testify/require", true},
		{"gocore/plan/x_test.go", "github.com/stretchr/testify/require", false},
		{"transports/transporttest/x.go", "github.com/stretchr/testify/require", false},
		{"gocore/plan/x_test.go", "github.com/nobody/knows", true},
		{"transports/rdma/netdev/x.go", "github.com/Mellanox/rdmamap", false},
		{"transports/tcp/x.go", "github.com/vishvananda/netlink", true},
		{"transports/cuda/nvml/x.go", "github.com/NVIDIA/go-nvml/pkg/nvml", false},
		{"transports/cuda/x.go", "github.com/NVIDIA/go-nvml/pkg/nvml", true},
		{"gocore/plan/x.go", "encoding/json", false},
	} {
		found := checkThirds(snippet(t, c.file, body(c.imported, "")), thirds)
		require.Equal(t, c.forbidden, len(found) > 0, "%s imports %s: %v", c.file, c.imported, found)
	}
}

func TestStaleLinesAreCaught(t *testing.T) {
	all := []*source{snippet(t, "gocore/a/a.go", body(module+"/gocore/b example.com/m", "")),
		snippet(t, "gocore/b/b.go", "package b\n")}
	table := []edge{{"gocore/a", []string{"gocore/b"}, down}, {"gocore/b", nil, down}}
	modules := []third{{prefix: "example.com/m", users: []string{"gocore/a"}}}
	require.Empty(t, stale(all, table, modules))
	require.Equal(t, []string{"gocore/b may import gocore/a, but does not", "gocore/c: no such package",
		"gocore/b may import example.com/m, but does not"},
		stale(all, []edge{table[0], {"gocore/b", []string{"gocore/a"}, down}, {"gocore/c", nil, down}},
			[]third{{prefix: "example.com/m", users: []string{"gocore/a", "gocore/b"}}}))
}

func TestLongFilesAreCaught(t *testing.T) {
	long := strings.Repeat("\n", fileLinesMax+1)
	require.NotEmpty(t, fileLength("gocore/x/x.go", long))
	require.NotEmpty(t, fileLength("tent/x.py", long))
	require.Empty(t, fileLength("gocore/x/x.go", long[1:]))
	require.Empty(t, fileLength("gocore/x/x.go", "// Code generated by protoc. DO NOT EDIT.\n"+long))
	require.Empty(t, fileLength("README.md", long))
}

func TestWordsOfNames(t *testing.T) {
	for name, want := range map[string][]string{"NewRDMAChannel": {"new", "rdma", "channel"}, "Sessions": {"sessions"},
		"job_id": {"job", "id"}, "TCP": {"tcp"}, "RPCServer2Host": {"rpc", "server2", "host"}} {
		require.Equal(t, want, words(name), name)
	}
}
