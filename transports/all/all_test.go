package all

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
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

// settings reads what somebody says in TENT_FAULTS and as arguments.
func settings(t *testing.T, environment string, arguments map[string]any) *config.Config {
	t.Helper()
	c, err := config.Load(config.Options{Built: Names(), Env: func(name string) string {
		return map[string]string{"TENT_FAULTS": environment}[name]
	}}, arguments)
	require.NoError(t, err)
	return c
}

func TestTheSameFaultsFromTheEnvironmentTheSettingsAndACall(t *testing.T) {
	const text = "fail_install seed=3"
	fromEnvironment, err := FaultsOf(settings(t, text, nil))
	require.NoError(t, err)
	fromSettings, err := FaultsOf(settings(t, "", map[string]any{"allow_faults": true, "faults": text}))
	require.NoError(t, err)
	byCall, err := FaultsOf(settings(t, "", map[string]any{"allow_faults": true}))
	require.NoError(t, err)
	require.Empty(t, byCall.String())
	require.NoError(t, byCall.Apply(text))
	for _, f := range []*Faults{fromEnvironment, fromSettings, byCall} {
		require.Equal(t, text, f.String())
		for _, e := range f.Into(Entries()) {
			_, err := e.Factory.Open(context.Background(), nil, nil, nil)
			require.ErrorContains(t, err, "fail_install", e.Factory.Name())
		}
	}
}

func TestFaultsAreRefusedUnlessTheyWereAllowed(t *testing.T) {
	none, err := FaultsOf(settings(t, "", nil))
	require.NoError(t, err)
	require.Nil(t, none)
	require.Equal(t, Entries()[0].Factory, none.Into(Entries())[0].Factory, "nothing stands between engine and transport")
	require.Nil(t, none.Dial())
	err = none.Apply("heal")
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(err))
	require.ErrorContains(t, err, "allow_faults=True")
}

func TestAMistakeInTheTextIsTheErrorOfOpening(t *testing.T) {
	_, err := FaultsOf(settings(t, "fail_instal", nil))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	require.ErrorContains(t, err, "did you mean fail_install?")
}
