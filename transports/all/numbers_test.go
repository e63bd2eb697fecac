package all

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoTwoTransportsMeetInAMaskAndAPlugInKeepsItsNumber(t *testing.T) {
	numbers.Lock()
	kept := numbers.byName
	numbers.byName = nil
	numbers.Unlock()
	t.Cleanup(func() { numbers.byName = kept })
	bits := map[uint8]string{}
	for i := range table {
		e := &table[i]
		require.Empty(t, bits[e.number&63], "%s and %s have one bit in masks: require= of one admits the other", e.name,
			bits[e.number&63])
		bits[e.number&63] = e.name
	}
	for i := range 60 {
		name := fmt.Sprint("plug-in-", i)
		n := numberOf(name)
		require.Equal(t, n, numberOf(name))
		if i >= 48 {
			require.Zero(t, n, "hints have eight bits, and masks 64")
			continue
		}
		require.NotZero(t, n)
		require.Empty(t, bits[n&63], "%s and %s have one bit in masks", name, bits[n&63])
		bits[n&63] = name
	}
}
