package reference

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/all"
)

// described are the transports of this build that are not open, in the order of preference.
func described() (list []transport.Transport, needs []string) {
	for _, factory := range all.Factories() {
		d, is := factory.(transport.Described)
		if !is {
			panic(factory.Name() + " does not describe its transports: see transport.Described")
		}
		text, like := d.Describe()
		list, needs = append(list, like), append(needs, text)
	}
	return list, needs
}

func TestTransportsDescribeThemselvesAsTheyAre(t *testing.T) {
	list, needs := described()
	for i, factory := range all.Factories() {
		info := list[i].Info()
		require.Equal(t, factory.Name(), info.Name)
		require.NotEmpty(t, needs[i])
		require.NotZero(t, info.SliceMax)
		require.Positive(t, info.SlicesMax, "%s: by the defaults of its settings", info.Name)
	}
}

// transports renders the page: needs, moves and limits of each, from its own Info and interfaces.
func transports() string {
	var b strings.Builder
	b.WriteString(`# Transports

The transports of this build, in the order in which an engine prefers them. A request takes the first that moves its kinds of memory,
reaches the peer and knows both regions; the next ones are its failover. [Policies](../guide/policies.md) change the order, and
[plug-ins](../design/transport-in-c.md) come before all of them. Memory of a device that none carries goes through
[staging](settings.md). ` + "`tent doctor` says which of them work on a machine, and `explain` why a request takes its way." + `

`)
	list, needs := described()
	for i, like := range list {
		info := like.Info()
		fmt.Fprintf(&b, "## %s\n\n| | |\n|---|---|\n| needs | %s |\n| moves | %s |\n| reaches | %s |\n| has | %s |\n"+
			"| limits | %s |\n\n", info.Name, needs[i], moves(&info), reaches(&info), abilities(like, &info),
			limits(&info))
	}
	b.WriteString("## Not in this build\n\nUpstream's names of transports that this build has not: ")
	b.WriteString(strings.Join(absent(), ", "))
	b.WriteString(". Settings of theirs are kept, and a plug-in may bring one under its name.\n")
	return b.String()
}

// absent are the transports of the table that are not part of this build.
func absent() (names []string) {
	for _, line := range all.Transports() {
		if line.Settings == nil {
			names = append(names, "`"+line.Name+"`")
		}
	}
	return names
}

func moves(info *transport.Info) string {
	var pairs []string
	for local := range mem.KindCount {
		for remote := range mem.KindCount {
			if info.Pairs[local][remote] {
				pairs = append(pairs, fmt.Sprintf("%v ↔ %v", mem.Kind(local), mem.Kind(remote)))
			}
		}
	}
	return strings.Join(pairs, ", ") + " (here ↔ there)"
}

func reaches(info *transport.Info) string {
	switch {
	case info.Files:
		return "files of this machine, or that are mounted here"
	case info.SameHost:
		return "engines of this host"
	case info.OtherHost:
		return "engines of other hosts"
	}
	return "engines of any host"
}

func abilities(like transport.Transport, info *transport.Info) string {
	var list []string
	add := func(is bool, words string) {
		if is {
			list = append(list, words)
		}
	}
	add(info.Vectors, "many pieces in a slice")
	add(info.Checksums, "checksums")
	_, is := transport.Find[transport.Inliner](like)
	add(is, "small calls on the caller's thread")
	_, is = transport.Find[transport.Poller](like)
	add(is, "waiters that find completions themselves")
	_, is = transport.Find[transport.Notifier](like)
	add(is, "notifications")
	_, is = transport.Find[transport.Prober](like)
	add(is, "probes of rails")
	_, is = transport.Find[transport.Allocator](like)
	add(is, "memory of its own")
	_, is = transport.Find[transport.Remapper](like)
	add(is, "pages that are replaced")
	if len(list) == 0 {
		return "none of the options"
	}
	return strings.Join(list, ", ")
}

func limits(info *transport.Info) string {
	text := "slices of up to " + bytesInWords(info.SliceMax)
	if best := info.SliceBest; best > 0 && best < info.SliceMax {
		text += ", with nothing to gain beyond " + bytesInWords(best)
	}
	text += fmt.Sprintf("; %d in flight on a rail", info.SlicesMax)
	if info.Alignment > 1 {
		text += fmt.Sprintf("; addresses and lengths are multiples of %d", info.Alignment)
	}
	if info.Pins {
		text += "; memory is pinned"
	}
	return text
}

func bytesInWords(n uint64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// selectionTree is the tree of the transports seed in its order. Its first one is not part of this build.
var selectionTree = []string{"mnnvl", "shm", "nvlink", "rdma", "tcp", "gds", "io-uring", "buf-io"}

// TestEachRowOfTheSelectionTree follows the tree by the four facts on which the seed lets a choice depend. They are the
// kinds of memory, the hosts, the switches, and the pairs that a transport moves. Each transport of the tree and of
// this build is chosen in some row.
func TestEachRowOfTheSelectionTree(t *testing.T) {
	list, _ := described()
	chosen := absent()
	for _, row := range []struct {
		tree          string
		local, remote mem.Kind
		sameHost      bool
		without       []string // switched off, or without hardware
		first         string   // "" for no way
	}{
		{"SHM: DRAM and DRAM of one host", mem.Host, mem.Host, true, nil, "shm"},
		{"NVLink: GPU and GPU of one host", mem.Cuda, mem.Cuda, true, nil, "nvlink"},
		{"NVLink: GPU and DRAM of one host", mem.Cuda, mem.Host, true, nil, "nvlink"},
		{"RDMA: GPU and GPU of one host, where NVLink is off", mem.Cuda, mem.Cuda, true, []string{"nvlink"}, "rdma"},
		{"RDMA: GPU and DRAM of two hosts", mem.Cuda, mem.Host, false, nil, "rdma"},
		{"RDMA: DRAM and GPU of two hosts", mem.Host, mem.Cuda, false, []string{"mnnvl"}, "rdma"},
		{"RDMA: DRAM of two hosts", mem.Host, mem.Host, false, nil, "rdma"},
		{"RDMA before TCP within a host", mem.Host, mem.Host, true, []string{"shm"}, "rdma"},
		{"TCP: where nothing else is", mem.Host, mem.Host, false, []string{"rdma", "ascend_direct"}, "tcp"},
		{"TCP: within a host, too", mem.Host, mem.Host, true, []string{"shm", "rdma", "ascend_direct"}, "tcp"},
		{"io_uring: DRAM and a file", mem.Host, mem.File, true, nil, "io-uring"},
		{"BufIO: where the kernel gives no ring", mem.Host, mem.File, true, []string{"io-uring"}, "buf-io"},
		{"MNNVL: GPU and GPU of two hosts", mem.Cuda, mem.Cuda, false, nil, "mnnvl"},
		{"DRAM and a GPU of another host, too", mem.Host, mem.Cuda, false, nil, "mnnvl"},
		{"but not a GPU and DRAM of another host", mem.Cuda, mem.Host, false, nil, "rdma"},
		{"RDMA: GPUs of two hosts without a common domain", mem.Cuda, mem.Cuda, false, []string{"mnnvl"}, "rdma"},
		{"and staging does where there is no RDMA", mem.Cuda, mem.Cuda, false, []string{"mnnvl", "rdma"}, ""},
		{"GDS: GPU and a file", mem.Cuda, mem.File, true, nil, "gds"},
		{"and staging does where it is off", mem.Cuda, mem.File, true, []string{"gds"}, ""},
		{"Ascend: NPUs of two hosts", mem.Npu, mem.Npu, false, nil, "ascend_direct"},
		{"Ascend: an NPU and DRAM of two hosts", mem.Npu, mem.Host, false, nil, "ascend_direct"},
		{"and staging does where there is no HIXL", mem.Npu, mem.Npu, false, []string{"ascend_direct"}, ""},
		{"which begins with a copy inside of a process", mem.Npu, mem.Host, true, []string{"ascend_direct"}, "acl"},
		{"a file is no memory: nothing else does where both are off", mem.Host, mem.File, true,
			[]string{"io-uring", "buf-io", "delegate"}, ""},
		{"nothing is left", mem.Host, mem.Host, false, []string{"rdma", "ascend_direct", "tcp"}, ""},
	} {
		chosen = append(chosen, "`"+row.first+"`")
		t.Run(row.tree, func(t *testing.T) {
			var candidates []plan.Candidate
			for i, like := range list {
				info := like.Info()
				c := plan.Candidate{Transport: uint8(i), Info: &info, Link: plan.LinkID(i + 1), LocalKey: 1,
					RemoteKey: 1, SameHost: row.sameHost}
				if slices.Contains(row.without, info.Name) {
					c.Disabled = "it is switched off"
				}
				candidates = append(candidates, c)
			}
			made, err := plan.Build(&plan.Request{Op: transport.Write, Local: plan.End{Kind: row.local},
				Remote: plan.End{Kind: row.remote}}, candidates)
			if row.first == "" {
				require.NotNil(t, err, "%+v", made)
				return
			}
			require.Nil(t, err)
			require.Equal(t, row.first, candidates[made.Routes[0].Transport].Info.Name)
		})
	}
	for _, name := range selectionTree {
		require.Contains(t, chosen, "`"+name+"`", "the tree has a row that is no test")
	}
}
