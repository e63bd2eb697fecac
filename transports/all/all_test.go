package all

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
)

func TestNamesAndNumbersAreOfOneTransport(t *testing.T) {
	seen := map[any]string{}
	claim := func(name string, value any) {
		require.NotContains(t, seen, value)
		seen[value] = name
	}
	for _, e := range table {
		require.NotZero(t, e.number, e.name)
		claim(e.name, e.number)
		claim(e.name, e.name)
		for _, spelling := range e.spellings {
			claim(e.name, spelling)
		}
		if e.branch != "" {
			claim(e.name, e.branch)
		}
		if e.factory != nil {
			require.Equal(t, e.name, e.factory.Name())
		}
	}
}

// settings reads the text of TENT_FAULTS and arguments.
func settings(t *testing.T, environment string, arguments map[string]any) *config.Config {
	t.Helper()
	c, err := config.Load(config.Options{Transports: Transports(), Env: func(name string) string {
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
		for _, factory := range f.Into(Factories()) {
			_, err := factory.Open(context.Background(), nil, nil, nil)
			require.ErrorContains(t, err, "fail_install", factory.Name())
		}
	}
}

func TestFaultsAreRefusedUnlessTheyWereAllowed(t *testing.T) {
	none, err := FaultsOf(settings(t, "", nil))
	require.NoError(t, err)
	require.Nil(t, none)
	require.Equal(t, Factories(), none.Into(Factories()), "nothing stands between engine and transport")
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
