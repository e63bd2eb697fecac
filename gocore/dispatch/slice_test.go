package dispatch

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// A slice record is used again and again. The marks of an earlier task must not travel with a later one: its checksum,
// its class, its pieces, the epoch of another owner.
func TestSliceOverLeavesNothingOfAnEarlierTask(t *testing.T) {
	callers := map[string]bool{"Rail": true, "Local": true, "Remote": true, "Length": true, "Id": true}
	spec := TaskSpec{Terms: request.Terms{Class: 1}, Epoch: 7}
	hop := plan.Hop{Op: transport.Read, LocalKey: 3, RemoteKey: 5}
	var fresh, used transport.Slice
	used = transport.Slice{Op: transport.Write, Checked: true, Class: 2, First: 9, LocalKey: 9, RemoteKey: 9, Epoch: 9,
		Scratch: [4]uint64{9, 9, 9, 9}}
	used.Pieces = &transport.Pieces{Bytes: 1}
	for i, v := 0, reflect.ValueOf(used); i < v.NumField(); i++ { // a new field belongs to one of both
		name := v.Type().Field(i).Name
		require.Equal(t, callers[name], v.Field(i).IsZero(), name)
	}
	spec.SliceOver(&hop, &fresh)
	spec.SliceOver(&hop, &used)
	was, is := reflect.ValueOf(fresh), reflect.ValueOf(used)
	for i := range was.NumField() {
		if name := was.Type().Field(i).Name; !callers[name] {
			require.Equal(t, was.Field(i).Interface(), is.Field(i).Interface(), name)
		}
	}
	require.Equal(t, transport.Epoch(7), used.Epoch)
	require.Equal(t, transport.RemoteKey(5), used.RemoteKey)
}
