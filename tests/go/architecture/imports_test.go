package architecture

import (
	"maps"
	"slices"
	"strings"
)

// edge is a rule of the table of imports: the packages of this repository that a package may import.
type edge struct {
	from string   // package, or a folder with "/*" for each package below it
	may  []string // packages, folders with "/*", or one of the groups below
	why  string   // the property that the restriction protects
}

// Groups of packages; they are used with a "+" in front.
var groups = map[string][]string{
	"vocabulary": {"gocore/errs", "gocore/mem", "gocore/clock", "gocore/event", "gocore/config", "gocore/nic"},
	"contract":   {"gocore/transport", "gocore/topology"},
	"policy":     {"gocore/plan", "gocore/rail", "gocore/qos"},
	"control": {"gocore/audit", "gocore/meta", "gocore/meta/names", "gocore/security", "gocore/segment",
		"gocore/control",
		"gocore/metrics", "gocore/scrape", "gocore/share"},
}

const (
	leaf       = "the vocabulary is what everything else is said in, so it can know nobody"
	contractOf = "the contract is read by people who write a transport and know nothing else of the core"
	pure       = "policy packages do not know each other: only dispatch calls them, so each is a unit test of its own"
	down       = "imports go down only: vocabulary, contract and policy, control plane, engine, pybind"
	apart      = "a transport knows the vocabulary and the contract: never the engine, never another transport"
)

// edges is the table. A package that is not in it may import nothing of the repository, so a new one needs a line and
// with it a thought about its place.
var edges = []edge{
	{"gocore/errs", nil, leaf},
	{"gocore/clock", nil, leaf},
	{"gocore/mem", nil, leaf},
	{"gocore/nic", nil, leaf},
	{"gocore/event", []string{"gocore/errs", "gocore/clock"}, leaf},
	{"gocore/config", []string{"gocore/errs", "gocore/mem"}, leaf},
	{"gocore/device", []string{"gocore/errs", "gocore/mem"},
		"who writes a platform reads this contract, and knows nothing of engines and transports"},
	{"gocore/device/devicetest", []string{"gocore/device", "gocore/errs", "gocore/mem"},
		"a platform of tests is one as others are"},
	{"gocore/transport", []string{"+vocabulary"}, contractOf},
	{"gocore/request", []string{"gocore/errs", "gocore/clock", "gocore/transport"},
		"the terms of a request are read by every layer above the contract"},
	{"gocore/request/schema", nil,
		"the table of terms is data: it must be readable while what is made from it does not build"},
	{"gocore/request/schema/generate", []string{"gocore/request/schema"}, "it writes files and does nothing else"},
	{"gocore/topology", []string{"+vocabulary"}, pure},
	{"gocore/traps", []string{"gocore/vmem"}, "it asks the kernel, and knows nothing of engines"},
	{"gocore/vmem", []string{"gocore/errs", "gocore/mem"}, "it asks the kernel, and knows nothing of engines"},
	{"gocore/plan", []string{"+vocabulary", "gocore/transport"}, pure},
	{"gocore/rail", []string{"+vocabulary"}, pure},
	{"gocore/qos", []string{"+vocabulary"}, pure},
	{"gocore/staging", []string{"+vocabulary", "gocore/plan", "gocore/transport"},
		"routes of two hops are made of plans; it knows no memory and no engine"},
	{"gocore/dispatch", []string{"+vocabulary", "+policy", "gocore/transport", "gocore/request",
		"gocore/dispatch/internal/intrusive"}, down},
	{"gocore/dispatch/internal/intrusive", []string{"gocore/clock"}, "containers know nothing of the records in them"},
	{"gocore/meta", []string{"+vocabulary"}, down},
	{"gocore/meta/names", []string{"+vocabulary", "gocore/meta", "gocore/security"}, down},
	{"gocore/security", []string{"+vocabulary", "gocore/transport"}, down},
	{"gocore/security/securitytest", nil, "certificates of tests are made by the standard library alone"},
	{"gocore/audit", []string{"+vocabulary"}, down},
	{"gocore/segment", []string{"+vocabulary", "gocore/transport"}, down},
	{"gocore/control", []string{"+vocabulary", "gocore/transport", "gocore/meta", "gocore/security", "gocore/segment",
		"gocore/control/controlpb", "gocore/control/intake"}, down},
	{"gocore/control/intake", nil, "it accepts connections, and knows nothing of engines"},
	{"gocore/metrics", []string{"+vocabulary", "gocore/transport", "gocore/dispatch"}, down},
	{"gocore/scrape", []string{"+vocabulary"}, "what is served over HTTP comes as functions: it knows no engine"},
	{"gocore/share", []string{"+vocabulary", "gocore/qos"}, down},
	{"gocore/spin", []string{"gocore/clock"}, "engine and transports wait alike, and it knows neither"},
	{"gocore/engine", []string{"+vocabulary", "+contract", "+policy", "+control", "gocore/device", "gocore/request",
		"gocore/dispatch", "gocore/spin", "gocore/staging", "gocore/traps", "gocore/vmem"},
		"the engine is the only shell around the core; transports come to it from outside, by transports/all"},
	{"transports/kit", []string{"+vocabulary", "gocore/transport"}, apart},
	{"transports/host/*", []string{"+vocabulary"},
		"tools for one machine's processes serve several transports, so they know none"},
	{"transports/host/manifest", []string{"+vocabulary", "transports/host/vm"},
		"a manifest counts in the hands of the process that made it, so it knows processes"},
	{"transports/host/access", []string{"+vocabulary", "gocore/transport", "transports/kit", "transports/host/hazard",
		"transports/host/manifest", "transports/host/vm"},
		"access carries out Attach, Serve and Revoke of transports of one host, so it knows the contract"},
	{"transports/*", []string{"+vocabulary", "gocore/device", "gocore/spin", "gocore/transport", "transports/kit",
		"transports/host/*"}, apart},
	{"transports/transporttest", []string{"+vocabulary", "gocore/device", "gocore/transport", "tests/leaks"},
		"the conformance suite of transports knows the contract alone"},
	{"transports/ascend", []string{"+vocabulary", "gocore/device", "gocore/transport", "transports/kit",
		"transports/ascend/acl", "transports/ascend/hixl"}, apart},
	{"transports/ascend/acl", []string{"+vocabulary", "gocore/device"},
		"a platform knows no transport"},
	{"transports/ascend/hixl", []string{"+vocabulary"},
		"it is a library of the vendor, which knows no transport"},
	{"transports/cuda/driver", []string{"+vocabulary", "gocore/device", "transports/cuda/nvml", "transports/host/*"},
		"the platform asks NVML how its devices are connected, and knows no transport"},
	{"transports/cuda/cufile", []string{"+vocabulary", "transports/cuda/driver"},
		"it is a library of the vendor, which knows devices and no transport"},
	{"transports/cuda/gds", []string{"+vocabulary", "gocore/transport", "transports/cuda/cufile",
		"transports/cuda/driver", "transports/file"},
		"it brings a library to the transport of files, which knows nothing of it"},
	{"transports/all", []string{"+vocabulary", "gocore/device", "gocore/transport", "transports/*"},
		"the registry names every transport and does nothing else"},
	{"pybind", []string{"gocore/*", "transports/all"},
		"pybind wraps the engine; a single transport is none of its business"},
	{"pybind/*", []string{"gocore/*", "transports/all", "pybind"},
		"pybind wraps the engine; a single transport is none of its business"},
	{"tests/fakes/compiled", nil, "it runs compilers, and knows none of the libraries"},
	{"tests/fakes/loaded", nil, "it calls a library by a convention, and knows none of them"},
	{"tests/fakes/*", []string{"tests/fakes/compiled", "tests/fakes/loaded"}, "a fake library knows nothing of ours"},
	{"tests/fakes/ascend", []string{"tests/fakes/compiled", "tests/fakes/loaded", "tests/fakes/cuda"},
		"a test with it runs in a child process as one with the other does"},
	{"tests/fakes/cufile", []string{"tests/fakes/compiled", "tests/fakes/loaded", "tests/fakes/cuda"},
		"a fake library works over another one, and knows nothing of ours"},
	{"tests/gpubed", []string{"gocore/*", "transports/*", "tests/fakes/cuda", "tests/netbed", "tests/forked"},
		"the test bed of two processes with GPUs is made of the fake driver and of engines"},
	{"tests/*", []string{"gocore/*", "transports/*", "tests/netbed", "tests/roce", "tests/forked",
		"tests/bench/report", "tests/strangers"},
		"tests and measurements may use everything but the binding"},
}

// fakes are packages that tests may import wherever they are: fakes are shared, never private copies.
var fakes = []string{"gocore/device/devicetest", "gocore/security/securitytest", "transports/transporttest",
	"transports/sim", "transports/faulty", "tests/forked", "tests/gpubed", "tests/leaks", "tests/ports",
	"tests/roce", "tests/fakes/ascend", "tests/fakes/compiled", "tests/fakes/cuda", "tests/fakes/cufile",
	"tests/fakes/nvml", "tests/fakes/verbs"}

// testEdges lists the imports of a package's tests beyond the package's own edges.
var testEdges = []edge{
	{"gocore/control", []string{"gocore/mem"}, down},
	{"gocore/engine", []string{"transports/*", "gocore/qos"}, "tests of the engine run it over real transports"},
	{"transports/all", []string{"gocore/engine", "gocore/dispatch"},
		"a test shows that a line in the registry is all that an engine needs to use a transport"},
}

// matches reports whether a pattern of the tables names a package.
func matches(pattern, pkg string) bool {
	folder, deep := strings.CutSuffix(pattern, "/*")
	return pkg == pattern || deep && within(pkg, folder) && pkg != folder
}

// allowed reports whether a list of the table has a package.
func allowed(may []string, pkg string) bool {
	return slices.ContainsFunc(may, func(pattern string) bool {
		if group, found := strings.CutPrefix(pattern, "+"); found {
			return slices.Contains(groups[group], pkg)
		}
		return matches(pattern, pkg)
	})
}

// rule returns the line of a package, the longest pattern first.
func rule(table []edge, pkg string) *edge {
	var best *edge
	for i := range table {
		if matches(table[i].from, pkg) && (best == nil || len(table[i].from) > len(best.from)) {
			best = &table[i]
		}
	}
	return best
}

// checkEdges checks the imports of a file that stay inside the repository.
func checkEdges(s *source, table []edge) (out []violation) {
	for _, i := range s.syntax.Imports {
		pkg, inside := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module+"/")
		if !inside || pkg == s.folder || within(pkg, s.folder) && strings.Count(s.folder, "/") > 0 {
			continue
		}
		line := rule(table, s.folder)
		switch {
		case line == nil:
			out = append(out, s.at(i.Pos(), down, "package %s has no line in the table of imports, yet it imports %s",
				s.folder, pkg))
		case allowed(line.may, pkg):
		case s.test && (slices.Contains(fakes, pkg) || allowed([]string{"+vocabulary"}, pkg)):
		case s.test && rule(testEdges, s.folder) != nil && allowed(rule(testEdges, s.folder).may, pkg):
		default:
			out = append(out, s.at(i.Pos(), line.why, "%s must not import %s", s.folder, pkg))
		}
	}
	return out
}

// third is a rule about code of third parties.
type third struct {
	prefix string
	users  []string // folders
	tests  bool     // only in tests and in packages made for tests
	why    string
}

// thirds lists every module of others that may be imported, and by whom: each is a debt, so it stays in one place.
var thirds = []third{
	{"google.golang.org/grpc", []string{"gocore/control"}, false, "the control plane alone speaks RPC"},
	{"google.golang.org/protobuf", []string{"gocore/control"}, false,
		"the control plane alone has messages in protobuf"},
	{"go.etcd.io/etcd", []string{"gocore/meta/names"}, false, "names are looked up in one place"},
	{"go.uber.org/zap", []string{"gocore/meta/names"}, false, "the client of etcd takes its logger, and gets none"},
	{"github.com/redis/go-redis", []string{"gocore/meta/names"}, false, "names are looked up in one place"},
	{"github.com/alicebob/miniredis", nil, true, "only tests run a Redis inside the process"},
	{"github.com/prometheus", []string{"gocore/metrics"}, false,
		"metrics are counted as plain integers and rendered in one place"},
	{"golang.org/x/sys", []string{"gocore/clock", "gocore/control/intake", "gocore/engine", "gocore/security",
		"gocore/share", "gocore/spin", "gocore/traps", "gocore/vmem", "transports"}, false,
		"system calls belong to transports and to the shell, not to policy"},
	{"golang.org/x/crypto/chacha20poly1305", []string{"transports/tcp"}, false,
		"ciphers are the standard library's, but for the one that it keeps to itself"},
	{"github.com/go-python/gopy", []string{"pybind"}, false, "only the binding knows Python"},
	{"github.com/pawelgaczynski/giouring", []string{"transports/file/ring"}, false,
		"a library that needs a flag of the linker and care in use has one user"},
	{"github.com/stretchr/testify", nil, true, "assertions belong to tests"},
	{"go.uber.org/goleak", nil, true, "leak checks belong to tests"},
	{"github.com/vishvananda", nil, true, "only tests make network namespaces and cables"},
	{"github.com/Mellanox/rdmamap", []string{"transports/rdma/netdev"}, false,
		"NICs and their RDMA devices are matched in one place"},
	{"github.com/NVIDIA/go-nvml", []string{"transports/cuda/nvml"}, false,
		"it resolves symbols at load, so it has one user, behind trampolines"},
	{"github.com/google/nftables", nil, true, "only tests lose packets on purpose"},
}

// testFolders hold code for tests that is in no _test.go file.
var testFolders = []string{"gocore/device/devicetest", "transports/transporttest", "transports/sim",
	"transports/faulty", "tests"}

func forTests(s *source) bool { return s.test || withinAny(s.folder, testFolders) }

// checkThirds checks a file's imports of other modules.
func checkThirds(s *source, table []third) (out []violation) {
	for _, i := range s.syntax.Imports {
		pkg := strings.Trim(i.Path.Value, `"`)
		first, _, _ := strings.Cut(pkg, "/")
		if !strings.Contains(first, ".") || within(pkg, module) {
			continue // the standard library, or ours
		}
		n := slices.IndexFunc(table, func(t third) bool { return within(pkg, t.prefix) })
		switch {
		case n < 0:
			out = append(out, s.at(i.Pos(), "every dependency is a decision of the project",
				"%s is not in the table of modules", pkg))
		case forTests(s), withinAny(s.folder, table[n].users):
		default:
			out = append(out, s.at(i.Pos(), table[n].why, "%s must not import %s", s.folder, pkg))
		}
	}
	return out
}

// stale returns lines of the tables that nothing in the repository needs any more. These are packages that are gone,
// edges between single packages that nobody uses, users of a module that do not use it.
func stale(all []*source, table []edge, modules []third) (out []string) {
	packages, used := map[string]bool{}, map[string]map[string]bool{}
	for _, s := range all {
		packages[s.folder] = true
		if used[s.folder] == nil {
			used[s.folder] = map[string]bool{}
		}
		for _, p := range s.imports {
			used[s.folder][p] = true
		}
	}
	for _, e := range table {
		users := slices.DeleteFunc(slices.Sorted(maps.Keys(packages)),
			func(pkg string) bool { return !matches(e.from, pkg) })
		if len(users) == 0 && !strings.HasSuffix(e.from, "/*") {
			out = append(out, e.from+": no such package")
			continue
		}
		for _, to := range e.may {
			if strings.HasPrefix(to, "+") || strings.HasSuffix(to, "/*") || strings.HasSuffix(e.from, "/*") {
				continue // groups are permissions, not uses
			}
			if !used[e.from][module+"/"+to] {
				out = append(out, e.from+" may import "+to+", but does not")
			}
		}
	}
	for _, m := range modules {
		for _, user := range m.users {
			if !anyUses(used, user, m.prefix) {
				out = append(out, user+" may import "+m.prefix+", but does not")
			}
		}
	}
	return out
}

// anyUses reports whether a package in a folder imports something below a prefix.
func anyUses(used map[string]map[string]bool, folder, prefix string) bool {
	for pkg, imports := range used {
		for p := range imports {
			if within(pkg, folder) && within(p, prefix) {
				return true
			}
		}
	}
	return false
}
