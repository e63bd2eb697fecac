package all

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

func TestEntriesHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range Names() {
		require.NotEmpty(t, name)
		require.False(t, seen[name], name)
		seen[name] = true
	}
}

func TestFaultsFromTheEnvironmentReachEveryTransport(t *testing.T) {
	defer func() { faults = process{} }()
	t.Setenv("TENT_FAULTS", "fail_install")
	faults = process{}
	for _, e := range Entries() {
		_, err := e.Factory.Open(context.Background(), nil, nil, nil)
		require.ErrorContains(t, err, "fail_install", e.Factory.Name())
	}
	t.Setenv("TENT_FAULTS", "fail_instal")
	faults = process{}
	for _, e := range Entries() {
		_, err := e.Factory.Open(context.Background(), nil, nil, nil)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
		require.ErrorContains(t, err, "did you mean fail_install?")
	}
	require.ErrorContains(t, Faults("heal"), "TENT_FAULTS", "a mistake there is told, not forgotten")
}

func TestFaultsFromACall(t *testing.T) {
	defer func() { faults = process{} }()
	t.Setenv("TENT_FAULTS", "")
	faults = process{}
	require.NoError(t, Faults("fail_install"))
	_, err := Entries()[0].Factory.Open(context.Background(), nil, nil, nil)
	require.ErrorContains(t, err, "fail_install")
	require.Error(t, Faults("nonsense"))
	require.NoError(t, Faults("heal"))
}
