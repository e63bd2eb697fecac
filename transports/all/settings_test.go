package all

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func load(t *testing.T, key string, value any) (*config.Config, error) {
	t.Helper()
	return config.Load(config.Options{Transports: Transports()}, map[string]any{key: value})
}

// ranged are the numeric keys of all transports of this build, by name of the transport.
func ranged(t *testing.T) map[string][]config.Setting {
	t.Helper()
	found := map[string][]config.Setting{}
	for _, line := range Transports() {
		for _, s := range line.Keys() {
			if s.Takes.Kind == config.Int || s.Takes.Kind == config.Float {
				found[line.Name] = append(found[line.Name], s)
			}
		}
	}
	require.NotEmpty(t, found["tcp"])
	return found
}

// opened is the error of a transport's own Open when the settings are those of a Config. Open checks its settings
// before it looks at anything else; a host that is nil is the next thing that it meets.
func opened(t *testing.T, c *config.Config, name string) (err error) {
	t.Helper()
	for _, factory := range Factories() {
		if factory.Name() != name {
			continue
		}
		defer func() {
			if recover() != nil {
				err = nil // it took the settings
			}
		}()
		var opened transport.Transport
		opened, err = factory.Open(context.Background(), c.SettingsOf(name), nil, nil)
		if errs.CodeOf(err) == errs.DeviceNotFound {
			return nil // it took the settings, and has a reason as those of Check
		}
		if err == nil {
			require.NoError(t, opened.Close(context.Background()))
		}
	}
	return err
}

func TestEveryTransportTakesItsSettingsToTheirBounds(t *testing.T) {
	for name, settings := range ranged(t) {
		for _, s := range settings {
			step := 1.0
			if s.Takes.Kind == config.Float {
				step = s.Takes.Min / 2
			}
			for _, bound := range []float64{s.Takes.Min, s.Takes.Max} {
				c, err := load(t, s.Key, bound)
				require.NoError(t, err, "%s = %v", s.Key, bound)
				require.NoError(t, opened(t, c, name), "%s = %v", s.Key, bound)
			}
			for _, beyond := range []float64{s.Takes.Min - step, s.Takes.Max + step} {
				_, err := load(t, s.Key, beyond)
				require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%s = %v", s.Key, beyond)
				require.ErrorContains(t, err, s.Key)
				require.ErrorContains(t, err, s.Takes.String())
			}
			_, err := load(t, s.Key+"x", s.Takes.Min)
			require.ErrorContains(t, err, `the nearest known setting is "`+s.Key+`", which takes `+s.Takes.String())
		}
	}
}

// Open is given structs by Go programs too, where a zero field means the default.
func TestOpenItselfRefusesWhatIsBeyondItsBounds(t *testing.T) {
	for _, factory := range Factories() {
		configured, is := factory.(transport.Configured)
		require.True(t, is, factory.Name())
		kind := reflect.TypeOf(configured.Settings())
		for i := range kind.NumField() {
			f := kind.Field(i)
			if f.Type.Kind() != reflect.Int && f.Type.Kind() != reflect.Uint64 || f.Tag.Get("takes") == "" {
				continue
			}
			if of := f.Tag.Get("of"); of != "" && !goesBy(factory.Name(), of) {
				continue
			}
			settings := reflect.New(kind)
			if field := settings.Elem().Field(i); field.CanUint() {
				field.SetUint(1 << 62)
			} else {
				field.SetInt(1 << 62)
			}
			_, err := factory.Open(context.Background(), settings.Interface(), nil, nil)
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%s.%s", kind, f.Name)
			require.ErrorContains(t, err, "it takes an integer from", "%s.%s", kind, f.Name)
		}
	}
}

func goesBy(name, branch string) bool {
	for _, line := range Transports() {
		if line.Name == name {
			return line.Goes(branch)
		}
	}
	return false
}

// A zero field of a struct means the default, so no key may take zero as something else. A pointer keeps the two apart.
func TestZeroIsADefaultOrAValueAndNeverBoth(t *testing.T) {
	for name, settings := range ranged(t) {
		for _, s := range settings {
			if strings.Contains(s.Key, "/rail_") || strings.Contains(s.Key, "/health_") ||
				strings.Contains(s.Key, "/priority_") {
				continue // the core's, which reads them from the tree alone
			}
			takesZero := s.Takes.Min <= 0 && s.Takes.Max >= 0 && !isPointer(name, s.Key)
			require.False(t, takesZero && s.Default != int64(0), "%s: %s takes 0, and its default is %v", name, s.Key,
				s.Default)
		}
	}
}

// isPointer reports whether the field of a key is a pointer.
func isPointer(name, key string) bool {
	for _, factory := range Factories() {
		configured, is := factory.(transport.Configured)
		if !is || factory.Name() != name {
			continue
		}
		for _, f := range reflect.VisibleFields(reflect.TypeOf(configured.Settings())) {
			if own := f.Tag.Get("key"); own != "" && strings.HasSuffix(key, "/"+own) {
				return f.Type.Kind() == reflect.Pointer
			}
		}
	}
	return false
}

func TestEverySettingShowsTheValueInForce(t *testing.T) {
	c, err := config.Load(config.Options{Transports: Transports()})
	require.NoError(t, err)
	free := map[string]bool{"transports/tcp/port": true, "rpc_server_port": true, "max_failover_attempts": true,
		"busy_poll_us": true, "transports/tcp/busy_poll_us": true, "transports/ascend_direct/transfer_timeout_ms": true,
		"inline_bytes": true, "default_priority": true, "metrics/http_port": true,
		"transports/rdma/endpoint/pkey_index": true, "transports/rdma/endpoint/flow_label": true,
		"transports/rdma/endpoint/src_path_bits": true, "transports/rdma/endpoint/static_rate": true,
		"transports/rdma/endpoint/traffic_class": true, "transports/rdma/endpoint/service_level": true}
	for _, e := range c.Dump() {
		if e.Active && !free[e.Key] {
			require.NotEqual(t, int64(0), e.Value, "%s shows 0", e.Key)
		}
	}
}
