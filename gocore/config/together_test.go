package config

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// Faults that were left in a file must not break a service: they need leave from somebody.
func TestFaultsNeedLeave(t *testing.T) {
	_, err := Load(Options{}, `{"faults": "lose"}`)
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(err))
	require.ErrorContains(t, err, "faults is set (argument), but allow_faults is false (default)")
	for _, settings := range []string{`{"faults": "lose", "allow_faults": true}`, `{"faults": ""}`} {
		_, err = Load(Options{}, settings)
		require.NoError(t, err)
	}
	c, err := Load(Options{Env: env("TENT_FAULTS", "lose")})
	require.NoError(t, err)
	require.Equal(t, "lose", c.Engine.Faults)
}

// Of two modes of security, somebody believes in the stricter one.
func TestModesOfSecurityExcludeEachOther(t *testing.T) {
	given := map[string]any{"security/cluster_key": "/key", "security/local_users": []any{"any"}, "insecure": true,
		"security/allow": []any{"*"}}
	for one, value := range given {
		_, err := Load(Options{}, map[string]any{one: value})
		require.NoError(t, err, one)
		for other, value := range given {
			_, err := Load(Options{}, map[string]any{one: given[one], other: value})
			if one == other {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, "exclude each other", "%s and %s", one, other)
		}
	}
}

func TestNaNIsNoNumber(t *testing.T) {
	for key, value := range map[string]any{"transfer_stall_timeout": math.NaN(),
		"transports/birds/numa_penalties": []any{1.0, math.NaN(), 3.0}, "max_batches": math.NaN()} {
		_, err := Load(birdsOnly, map[string]any{key: value})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), key)
	}
}
