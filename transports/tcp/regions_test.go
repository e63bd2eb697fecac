package tcp

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestARegionsKeyLeadsToNoOther: regions that are registered one after the other have keys in no relation, and the
// key of one that is gone finds nothing.
func TestARegionsKeyLeadsToNoOther(t *testing.T) {
	e, ctx := newTestEndpoint(t, Settings{}), context.Background()
	tr := e.tr.(*Transport)
	memory := mapping(t, 4096)
	steps := map[uint64]bool{}
	var last uint64
	for i := range 64 {
		key, _, err := tr.Register(ctx, regionOf(memory))
		require.NoError(t, err)
		require.NotNil(t, tr.regions.Lookup(uint64(key)))
		require.False(t, i > 0 && steps[uint64(key)-last], "two keys lie as far apart as two others")
		steps[uint64(key)-last] = true
		if last = uint64(key); i%2 == 0 {
			require.NoError(t, tr.Deregister(ctx, key))
			require.Nil(t, tr.regions.Lookup(last))
		}
	}
}
