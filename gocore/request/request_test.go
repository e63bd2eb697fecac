package request

import (
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestAPackedRequestKeepsEveryTerm(t *testing.T) {
	p := Packed{Opcode: 1, Priority: 2, TransportHint: 7, DeadlineNs: 12345, IntentType: 4, Integrity: 1, Durability: 1,
		PolicyName: 1 << 63}
	terms := p.Terms()
	require.Equal(t, Terms{Op: transport.Write, Class: 2, Hint: 7, Deadline: 12345, Intent: IntentCheckpoint,
		Integrity: IntegrityCRC32C, Durability: DurabilityData, Policy: 1 << 63}, terms)
	require.Nil(t, terms.Check())
	none := Packed{}
	require.Equal(t, Terms{}, none.Terms(), "0 is the default of every term")
}

// TestEveryTermOutOfItsRangeIsRefusedByName walks over the words of Packed, so a new term is asked too.
func TestEveryTermOutOfItsRangeIsRefusedByName(t *testing.T) {
	kind := reflect.TypeFor[Packed]()
	for i := range kind.NumField() {
		for _, bad := range []uint64{255, 256, 1 << 32, 1 << 63, math.MaxUint64} {
			name := kind.Field(i).Name
			if name == "PolicyName" || name == "Require" || name == "Stream" || (name == "DeadlineNs" && bad < 1<<63) {
				continue // any hash may be a policy's; any mask; any handle; an instant long ago
			}
			var p Packed
			reflect.ValueOf(&p).Elem().Field(i).SetUint(bad)
			terms := p.Terms()
			err := terms.Check()
			require.NotNil(t, err, "%s = %d", name, bad)
			require.Equal(t, errs.InvalidArgument, err.Code)
			require.ErrorContains(t, err, "must be")
		}
	}
}

func TestNoDeadlineIsDueNever(t *testing.T) {
	require.Equal(t, clock.Never, (&Terms{}).Due())
	require.Equal(t, clock.Time(5), (&Terms{Deadline: 5}).Due())
}
