package transporttest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANewSkipAndAStaleLineAreFound(t *testing.T) {
	const list = "x TestA One: no one\nx TestA Two: no two\ny TestA Three: no three\n"
	s := &skips{name: "x TestA"}
	s.add("One", "no one")
	require.Empty(t, s.differences(list, false), "a part of the suite says nothing of the rest")
	require.Equal(t, []string{"remove from transports/transporttest/skips.txt, it is not skipped: x TestA Two: no two"},
		s.differences(list, true))
	s.add("Two", "no two")
	require.Empty(t, s.differences(list, true))
	s.add("Three", "no three")
	require.Equal(t, []string{"a skip that is not in transports/transporttest/skips.txt: x TestA Three: no three"},
		s.differences(list, false), "that of another transport does not count")

	s = &skips{name: "x TestB/one/two"}
	s.add("Two", "no two")
	require.Empty(t, s.differences("x TestB/*/* Two: no two\n", true), "a line of all runs below TestB")
	require.Len(t, s.differences("x TestB/* Two: no two\n", true), 1, "a * is one name")
}
