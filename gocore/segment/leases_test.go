package segment

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// leased is a description with a region, a lease of three ranges and one of a single range.
func leased(t testing.TB) *Description {
	d := example(t, 1)
	for i, r := range []Region{{ID: 9, Lease: 7, Start: 30, Size: 5}, {ID: 7, Lease: 7, Size: 10, Name: "step-7"},
		{ID: 8, Lease: 7, Start: 10, Size: 20}, {ID: 20, Lease: 20, Size: 64}} {
		r.Location, r.Permission = "cpu:0", mem.GlobalReadOnly
		r.Descriptors = map[string]transport.Descriptor{"tcp": {2, byte(i)}}
		d.Regions = append(d.Regions, r)
	}
	require.NoError(t, d.Seal())
	return d
}

func TestLeasesAreFoundByNumberAndNameAndByNoAddress(t *testing.T) {
	sent := leased(t)
	d, err := Decode(Encode(sent, true))
	require.NoError(t, err)
	require.Equal(t, sent, d)
	var ids []mem.RegionID
	for _, r := range d.Ranges(7) {
		ids = append(ids, r.ID)
	}
	require.Equal(t, []mem.RegionID{7, 8, 9}, ids)
	whole, is := d.Lease(7)
	require.True(t, is)
	require.EqualValues(t, 35, whole.Size)
	require.Equal(t, "step-7", whole.Name)
	require.EqualValues(t, 7, d.Find("step-7").ID)
	require.Len(t, d.Offers(), 3, "each lease is one")
	require.Len(t, d.Regions, 5)
	for _, id := range []mem.RegionID{0, 1<<32 | 1, 8, 9, 19, 21, math.MaxUint64} {
		require.Nil(t, d.Ranges(id), "%d is no lease", id)
	}
	for _, addr := range []uint64{0, 1, 30, 63, 1 << 63} {
		require.Nil(t, d.Containing(addr, 1), "%#x", addr)
	}
}

// A peer may describe any ranges. Those that make no whole are none.
func TestLeasesThatMakeNoWholeAreNone(t *testing.T) {
	for name, ranges := range map[string][]Region{
		"a gap":            {{ID: 7, Lease: 7, Size: 10}, {ID: 8, Lease: 7, Start: 11, Size: 1}},
		"an overlap":       {{ID: 7, Lease: 7, Size: 10}, {ID: 8, Lease: 7, Start: 9, Size: 1}},
		"two at one place": {{ID: 7, Lease: 7, Size: 10}, {ID: 8, Lease: 7, Size: 10}},
		"no begin":         {{ID: 8, Lease: 7, Start: 10, Size: 10}},
		"another's begin":  {{ID: 8, Lease: 7, Size: 10}, {ID: 7, Lease: 7, Start: 10, Size: 10}},
	} {
		d := &Description{Regions: ranges}
		require.NoError(t, d.Seal(), name)
		require.Nil(t, d.Ranges(7), name)
		require.Empty(t, d.Offers(), name)
	}
	for name, r := range map[string]Region{
		"an address":         {ID: 7, Lease: 7, Addr: 1, Size: 1},
		"a start of no part": {ID: 7, Start: 1, Size: 1},
		"an overflow":        {ID: 7, Lease: 7, Start: math.MaxUint64, Size: 1},
	} {
		d := &Description{Regions: []Region{r}}
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(d.Seal()), name)
	}
}
