package transporttest_test

import (
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// partial is a size of memory that the second rail alone can use.
const partial = 12345

func secondRail(m *mem.Region, rail int) bool { return m.Size != partial || rail == 1 }

func (m *mutant) Match(l transport.Link, here transport.LocalKey, there transport.RemoteKey) (transport.Match, error) {
	match, err := m.Matcher.Match(l, here, there)
	switch {
	case m.name == "names every rail" && match.Rails != 0:
		match.Rails = ^uint64(0)
	case m.name == "keeps its keys to itself":
		match = transport.Match{}
	}
	return match, err
}
