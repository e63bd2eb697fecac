package all

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the tables of Python and C instead of comparing them")

const (
	pythonTable = "tent/_transports.py"
	header      = "pybind/capi/include/tent/transfer_engine.h"
	headerBegin = "/* Transports: written by go test ./transports/all -rewrite. */\n"
	headerEnd   = "/* End of transports. */\n"
)

// byNumber are the transports that upstream's TransportType has, in its order.
func byNumber() []entry {
	list := slices.Clone(table)
	slices.SortFunc(list, func(a, b entry) int { return int(a.number) - int(b.number) })
	return slices.DeleteFunc(list, func(e entry) bool { return e.members == "" })
}

// inPython makes the module of the table for Python.
func inPython() string {
	var b strings.Builder
	b.WriteString(`"""Names and numbers of transports. Written by go test ./transports/all -rewrite, from the table in all.go."""

from __future__ import annotations

from enum import IntEnum


class TransportType(IntEnum):
    """Transports; the numbers are those of Mooncake's TENT."""

    UNSPEC = 0
`)
	hints := map[string]int{"unspec": 0}
	var aliases []string
	for _, e := range byNumber() {
		for i, member := range strings.Fields(e.members) {
			line := fmt.Sprintf("    %s = %d\n", member, e.number)
			if i == 0 {
				b.WriteString(line)
			} else {
				aliases = append(aliases, line)
			}
		}
	}
	for _, e := range table {
		for _, name := range slices.Concat([]string{e.name, e.branch}, e.spellings,
			strings.Fields(strings.ToLower(e.members))) {
			if name != "" {
				hints[name] = int(e.number)
			}
		}
	}
	b.WriteString(strings.Join(aliases,
		"") + "\n\n# Names that hints take, in lower case.\nHINTS: dict[str, int] = {\n")
	for _, name := range slices.Sorted(maps.Keys(hints)) {
		fmt.Fprintf(&b, "    %q: %d,\n", name, hints[name])
	}
	return b.String() + pythonEnd
}

// pythonEnd adds transports that are known at run time alone.
const pythonEnd = `}


def learn_transports(numbers: dict[str, int]) -> None:
    """Hints take the transports of an engine by name, too: those of plug-ins. A number is one name's in a process."""
    for name, number in numbers.items():
        if number and name not in HINTS:
            HINTS[name] = number
`

// inC makes the enumeration for C: members in capitals, behind TRANSPORT_.
func inC() string {
	var b strings.Builder
	b.WriteString("enum {\n\tTRANSPORT_UNSPEC = 0, /* tent chooses */\n")
	list := byNumber()
	for i, e := range list {
		members := strings.Fields(e.members)
		capitals := slices.IndexFunc(members, func(m string) bool { return m == strings.ToUpper(m) })
		comma := ","
		if i == len(list)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "\tTRANSPORT_%s = %d%s\n", members[capitals], e.number, comma)
	}
	return b.String() + "};\n"
}

func TestPythonAndCReadTheTable(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, header))
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), headerBegin)
	require.True(t, found, "%s has no %s", header, headerBegin)
	_, after, found := strings.Cut(rest, headerEnd)
	require.True(t, found, "%s has no %s", header, headerEnd)
	for file, want := range map[string]string{
		pythonTable: inPython(),
		header:      before + headerBegin + inC() + headerEnd + after,
	} {
		path := filepath.Join(root, file)
		if *rewrite {
			require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		}
		have, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, string(have), "%s is not what the table makes: go test ./transports/all -rewrite", file)
	}
}

// The names of the tests are upstream's: TransportTypeNameMapping, ParseTransportType,
// WireValuesRemainStableWithUbAppended, UbTransportNameRoundTrips and MpcommWireValueMatchesCApiAndRoundTrips.
func TestWireValuesAreUpstreams(t *testing.T) {
	upstream := map[string]uint8{"rdma": 1, "mnnvl": 2, "shm": 3, "nvlink": 4, "gds": 5, "io-uring": 6, "tcp": 7,
		"ascend_direct": 8, "sunrise_link": 9, "tpu": 10, "ub": 11, "mpcomm": 12, "hp_tcp": 13}
	for _, line := range Transports() {
		if line.Number < 64 {
			require.Equal(t, upstream[line.Name], line.Number, line.Name)
			delete(upstream, line.Name)
		}
		for _, spelling := range line.Spellings {
			require.True(t, line.Goes(spelling))
		}
	}
	require.Empty(t, upstream, "transports that the table lacks")
}
