package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// vains looks in vain n times, and returns the numbers of the looks after which the processor was offered.
func (o *offers) vains(n int) (offered []int) {
	for k := 1; k <= n; k++ {
		if o.vain() {
			offered = append(offered, k)
		}
	}
	return offered
}

// A peer on the same processor answers behind each offer: then the first look in vain makes one. A peer elsewhere
// answers whenever it likes, and is looked for.
func TestTheProcessorIsOfferedSoonWhereThatBringsBytes(t *testing.T) {
	var o offers
	for range offerEarly {
		require.Equal(t, []int{4, 8}, o.vains(8))
		o.found()
	}
	require.Equal(t, []int{1, 4}, o.vains(4), "bytes have come behind offers alone")
	o.found()
	o.found() // at the first look: that says nothing
	require.Equal(t, []int{1}, o.vains(1))
	o.found()
	require.Equal(t, []int{1, 4}, o.vains(6))
	o.found() // behind a look
	for range offerEarly {
		require.Equal(t, []int{4}, o.vains(4))
		o.found()
	}
	require.Equal(t, []int{1}, o.vains(3))
}
