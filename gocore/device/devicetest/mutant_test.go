package devicetest

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/mem"
)

// mutants are platforms that break one rule each, and the rule.
var mutants = map[string]string{
	"locates more than it was asked for":        "MemoryIsLocatedWholeAndInPart",
	"takes memory of the host for its own":      "MemoryOfTheHostIsNone",
	"gives memory as it was left":               "AllocatedMemoryIsZeroed",
	"copies a byte too few":                     "CopiesReachTheirBytesOnly",
	"copies a byte too many":                    "CopiesReachTheirBytesOnly",
	"names all allocations the same":            "AnotherAllocationHasAnotherName",
	"remembers what was freed":                  "AnotherAllocationHasAnotherName",
	"takes another device for one that is none": "OrdinalsThatAreNotThere",
	"exports memory of the host":                "ExportsHoldTheRange",
	"exports the beginning of an allocation":    "ExportsHoldTheRange",
	"has gates that are open":                   "GatesOpenBehindTheirStream",
	"has gates that wait for later work":        "GatesOpenBehindTheirStream",
	"has latches that hold nothing":             "LatchesHoldTheirStream",
	"forgets all latches with the first":        "LatchesHoldTheirStream",
}

// mutantVariable names the mutant that a process runs.
const mutantVariable = "TENT_TEST_MUTANT"

// TestTheRulesFindBrokenPlatforms runs each mutant in a process of its own, where its rule fails. Each rule has one.
func TestTheRulesFindBrokenPlatforms(t *testing.T) {
	require.Equal(t, slices.Sorted(maps.Keys(rules)), slices.Compact(slices.Sorted(maps.Values(mutants))))
	for name, rule := range mutants {
		t.Run(name, func(t *testing.T) {
			run := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestMutant$/^"+rule+"$")
			run.Env = append(os.Environ(), mutantVariable+"="+name)
			out, err := run.CombinedOutput()
			require.Error(t, err, "the rule did not notice")
			require.Contains(t, string(out), "--- FAIL: TestMutant/"+rule+" ")
			require.NotContains(t, string(out), "panic: ")
		})
	}
}

// TestMutant is the rules over the mutant that the variable names.
func TestMutant(t *testing.T) {
	name := os.Getenv(mutantVariable)
	if name == "" {
		t.Skip("only for TestTheRulesFindBrokenPlatforms")
	}
	Run(t, &mutant{Platform: New(t, mem.Cuda, 2), name: name})
}

// mutant is the platform without hardware, with one fault in it.
type mutant struct {
	*Platform
	name  string
	first uintptr // the first allocation
	last  device.Span

	latches []device.Latch
}

func (m *mutant) Locate(addr uintptr, size uint64) ([]device.Span, error) {
	list, err := m.Platform.Locate(addr, size)
	switch {
	case m.name == "takes memory of the host for its own" && len(list) == 0:
		list = []device.Span{{Addr: addr, Size: size}}
	case m.name == "remembers what was freed" && len(list) == 0:
		list = []device.Span{m.last}
	case len(list) == 0:
	case m.name == "locates more than it was asked for":
		list[0].Size++
	case m.name == "names all allocations the same":
		list[0].Allocation = 1
	default:
		m.last = list[0]
	}
	return list, err
}

func (m *mutant) Allocate(ordinal int, size uint64) (uintptr, error) {
	if m.name == "takes another device for one that is none" && ordinal < 0 {
		ordinal = 0
	}
	addr, err := m.Platform.Allocate(ordinal, size)
	if m.name == "gives memory as it was left" && err == nil {
		err = m.Store(addr, bytes.Repeat([]byte{0xc3}, int(size)))
	}
	if m.first == 0 {
		m.first = addr
	}
	return addr, err
}

func (m *mutant) Copy(to, from uintptr, n uint64) error {
	switch m.name {
	case "copies a byte too few":
		n--
	case "copies a byte too many":
		_ = m.Platform.Copy(to, from, n+1) // refused where it leaves an allocation
	}
	return m.Platform.Copy(to, from, n)
}

func (m *mutant) Export(addr uintptr, size uint64) (mem.DMABuf, error) {
	b, err := m.Platform.Export(addr, size)
	switch {
	case m.name == "exports memory of the host" && err != nil:
		return mem.DMABuf{Fd: -1}, nil
	case m.name == "exports the beginning of an allocation" && err == nil:
		b.Offset -= uint64(addr - m.first)
	}
	return b, err
}

func (m *mutant) Gate(handle uintptr) (device.Gate, error) {
	g, err := m.Platform.Gate(handle)
	switch m.name {
	case "has gates that are open":
		g = opened{g}
	case "has gates that wait for later work":
		g = late{g, m, handle}
	}
	return g, err
}

// opened is a gate that waits for nothing.
type opened struct{ device.Gate }

func (opened) Open() (bool, error) { return true, nil }

// late is a gate that waits for all work that is in the stream when it is asked.
type late struct {
	device.Gate
	m      *mutant
	handle uintptr
}

func (l late) Open() (bool, error) {
	now, err := l.m.Platform.Gate(l.handle)
	if err != nil {
		return false, err
	}
	defer now.Close()
	return now.Open()
}

func (m *mutant) Hold(handle uintptr) (device.Latch, error) {
	l, err := m.Platform.Hold(handle)
	m.latches = append(m.latches, l)
	switch m.name {
	case "has latches that hold nothing":
		l.Release(1)
		l = released{l}
	case "forgets all latches with the first":
		l = careless{l, m}
	}
	return l, err
}

// released is a latch that was released before.
type released struct{ device.Latch }

func (released) Release(uint32) {}

// careless is a latch that releases all of its platform.
type careless struct {
	device.Latch
	m *mutant
}

func (c careless) Release(value uint32) {
	for _, l := range c.m.latches {
		l.Release(value)
	}
	c.m.latches = nil
}
