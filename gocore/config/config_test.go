package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// birds is a transport as its own folder would declare it.
type birds struct {
	Rail
	Addresses []string      `key:"addresses" takes:"addresses" default:"[\"127.0.0.1\"]" help:"Where they start."`
	Lanes     int           `key:"lanes" takes:"1..16" default:"= half the pigeons" help:"At once."`
	Port      int           `key:"port" takes:"port" help:"Where they land."`
	Requests  int           `key:"credit_requests" takes:"64..16384, a power of two" default:"1024" help:"Letters."`
	Slice     uint64        `key:"slice_bytes" takes:"4KiB..64MiB, a multiple of 4096" unit:"B" default:"1MiB" atmost:"window_bytes" help:"Of one letter."`
	Window    uint64        `key:"window_bytes" takes:"4KiB..1GiB" unit:"B" default:"8MiB" help:"In the air."`
	Copies    uint64        `key:"copy_from" takes:"1..1024" unit:"KiB" default:"256" help:"Copied before."`
	Limit     time.Duration `key:"dial_timeout_ms" takes:"1..3600000" unit:"ms" default:"500" help:"Of a start."`
	Weather   string        `key:"weather" takes:"fair|foul" default:"fair" help:"To fly in."`
	Loft      string        `key:"../loft/path" takes:"folder" help:"Shared with owls."`
	Hours     int           `key:"hours" of:"owls" takes:"1..24" default:"8" help:"Of night."`
	quiet     bool
}

func (b *birds) Compute() { b.Lanes = 7 }

// birdsOnly is a build with one transport of a table of four.
var birdsOnly = Options{Transports: []Transport{
	{Name: "birds", Number: 7, Spellings: []string{"pigeons"}, Settings: birds{}},
	{Name: "rdma", Number: 1},
	{Name: "io-uring", Number: 6, Branch: "io_uring", Spellings: []string{"iouring"}},
	{Name: "ub", Number: 11}}}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func entry(t *testing.T, c *Config, key string) Entry {
	t.Helper()
	for _, e := range c.Dump() {
		if e.Key == key {
			return e
		}
	}
	require.FailNow(t, "no such key", key)
	return Entry{}
}

func TestDefaultsFillEveryTypedField(t *testing.T) {
	c, err := Load(birdsOnly)
	require.NoError(t, err)
	require.Equal(t, Engine{RPCServerPort: 0, MetadataType: "p2p", MetadataLease: 10 * time.Second,
		MetadataTimeout: 2 * time.Second, Reload: 30 * time.Second,
		RenewalGrace: time.Minute, Data: "auth", LogLevel: "info", MergeRequests: true,
		MaxFailoverAttempts:  3,
		TransferStallTimeout: 30 * time.Second, FenceTimeoutHost: 100 * time.Millisecond,
		FenceTimeoutNetwork: time.Second, FenceTimeoutFile: 5 * time.Second, TransferSyncTimeout: 10 * time.Minute,
		MaxPendingRequests: 1 << 20, MaxBatches: 65536, NotificationQueue: 65536, NotificationBytes: 64 << 20,
		Staging: true, StagingSlots: 32, StagingSlotBytes: 1 << 20,
		MaxConnections: 1024, MaxPeerConnections: 8, MaxStrangers: 256, MaxCalls: 4000, MaxReception: 32 << 20,
		AttemptTimeout: 10 * time.Second, ResendRounds: 8, ResendInterval: time.Millisecond,
		RailSuspectAfter: 5 * time.Millisecond, RailCondemnAfter: time.Second, InlineBytes: 256 << 10,
		LinkWait:        500 * time.Millisecond,
		RegisterTimeout: 30 * time.Second, RegisterWait: 100 * time.Millisecond, MetricsHost: "127.0.0.1"}, c.Engine)
	seed := Rail{ErrorThreshold: 3, ErrorWindow: 10 * time.Second, Cooldown: 30 * time.Second,
		CooldownMax:      300 * time.Second,
		PromotionTimeout: 10 * time.Millisecond, AllowCrossNUMA: true,
		HealthSensitivity: 100, HealthRange: 99, HealthRecovery: 10,
		ProbeInterval: 10 * time.Millisecond, SoftOutMax: 0.75,
		SuspectAfter: 5 * time.Millisecond, NUMAPenalties: []float64{1, 5, 10},
		Filtering: true, FilterInterval: 200 * time.Microsecond, SlotInterval: 2 * time.Millisecond, SlotBorrow: true}
	require.Equal(t, &birds{Rail: seed, Addresses: []string{"127.0.0.1"}, Lanes: 7, Requests: 1024, Slice: 1 << 20,
		Window: 8 << 20,
		Copies: 256 << 10, Limit: 500 * time.Millisecond, Weather: "fair"}, c.SettingsOf("birds"))
	require.Equal(t, &seed, c.RailOf("birds"))
	require.Same(t, c.RailOf("birds"), c.RailOf("pigeons"))
	require.Nil(t, c.RailOf("rdma"), "it is not built")
	for _, e := range c.Dump() {
		require.True(t, isDefault(e.Origin), e.Key)
	}
	require.Empty(t, c.Inactive(), "nobody set anything")
}

func TestArgumentsWinOverEnvironmentKeyByKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tent.json")
	require.NoError(t,
		os.WriteFile(file, []byte(`{"merge_requests": false, "transports": {"birds": {"lanes": 2, "port": 7}}}`),
			0o600))
	o := birdsOnly
	o.Env = env("TENT_CONF", file, "MC_TENT_CONF", `{"name": "weak", "log_level": "error", "transports/birds/port": 6}`)
	c, err := Load(o, `{"transports/birds/lanes": 4}`,
		map[string]any{"transports": map[string]any{"pigeons/credit_requests": 128}, "name": nil})
	require.NoError(t, err)

	require.Equal(t, 4, c.SettingsOf("birds").(*birds).Lanes)
	require.Equal(t, 7, c.SettingsOf("birds").(*birds).Port)
	require.Equal(t, 128, c.SettingsOf("birds").(*birds).Requests)
	require.Equal(t, "weak", c.Engine.Name, "a null is not a value")
	require.False(t, c.Engine.MergeRequests)
	for key, origin := range map[string]string{
		"transports/birds/lanes": "argument", "transports/birds/credit_requests": "argument",
		"transports/birds/port": "environment TENT_CONF=" +
			file, "log_level": "environment MC_TENT_CONF", "transports/birds/dial_timeout_ms": "default",
	} {
		require.Equal(t, origin, entry(t, c, key).Origin, key)
	}
}

func TestMistakesNameKeyAndWhatItTakes(t *testing.T) {
	for _, test := range []struct{ settings, want string }{
		{`{"transports": {"birds": {"lane": 2}}}`,
			`unknown setting "transports/birds/lane"; the nearest known setting is "transports/birds/lanes", which takes an integer from 1 to 16`},
		{`{"topology/rdma_allowlist": []}`, `nearest known setting is "topology/rdma_whitelist"`},
		{`{"lanes": 2}`, `nearest known setting is "transports/birds/lanes"`},
		{`{"slot_rotation_interval_ms": 1}`, // as the QoS seed has it where it helps with troubles
			`"transports/rdma/slot_rotation_interval_ms", which takes an integer from 1 to 60000 ms; each of birds, rdma has one`},
		{`{"birds/enable": 1}`, `nearest known setting is "transports/birds/enable"`},
		{`{"transports/brids/enable": 1}`, `nearest known setting is "transports/birds/enable"`},
		{`{"transport": {"birds": {"lanes": 2}}}`,
			`unknown setting "transport/birds/lanes"; the nearest known setting is "transports/birds/lanes"`},
		{`{"transports": {"carrier-pigeon": {}}}`, `unknown setting "transports/carrier-pigeon"`},
		{`{"transports": {"birds": true}}`, `transports/birds: true has the wrong type: it takes an object`},
		{`{"merge_requests": 1}`, `merge_requests: 1 has the wrong type: it takes true or false`},
		{`{"max_failover_attempts": true}`,
			`max_failover_attempts: true has the wrong type: it takes an integer from 0 to 1000`},
		{`{"max_failover_attempts": -1}`, `max_failover_attempts: -1 is out of range`},
		{`{"max_failover_attempts": 2.5}`, `2.5 has the wrong type`},
		{`{"max_failover_attempts": 1e400}`, `1e400 has the wrong type`},
		{`{"max_pending_requests": 18446744073709551616}`, `18446744073709551616 is out of range`},
		{`{"rpc_server_port": "http"}`, `rpc_server_port: "http" has the wrong type`},
		{`{"rpc_server_port": 65536}`, `65536 is out of range: it takes an integer from 0 to 65535`},
		{`{"transfer_stall_timeout": "30"}`, `it takes a number from 0.01 to 86400 s, or a text like "20ms"`},
		{`{"name": "` + strings.Repeat("n", 256) + `"}`, `has 256 bytes; it takes a text of at most 255 bytes`},
		{`{"log_level": "loud"}`, `"loud" is out of range: it takes one of debug, info, warning, error`},
		{`{"transports/rdma/endpoint/service_level": 16}`,
			`transports/rdma/endpoint/service_level: 16 is out of range: it takes an integer from 0 to 15`},
		{`{"transports/rdma/endpoint/path_mtu": 1500}`, `512, 1024, 2048 or 4096`},
		{`{"transports/rdma/num_lanes": 4, "transports/rdma/workers/num_workers": 2}`,
			`set only transports/rdma/num_lanes`},
		{`{"transports/birds/addresses": ["localhost"]}`, `"localhost" is not an IP address`},
		{`{"transports/birds/addresses": ["10.0.0.1", "10.0.0.1"]}`, `listed twice`},
		{`{"transports/birds/addresses": "10.0.0.1"}`, `it takes a list of IP addresses`},
		{`{"transports/birds/addresses": ["0.0.0.0"]}`, `not the address of one interface`},
		{`{"transports/birds/rail_cooldown_secs": 400, "transports/birds/rail_cooldown_max_secs": 300}`,
			`rail_cooldown_secs is 400 s (argument), more than transports/birds/rail_cooldown_max_secs is 300 s (argument)`},
		{`{"transports/birds/priority_promotion_timeout_us": 0}`, `0 is out of range`},
		{`{"transports/birds/credit_requests": 100}`,
			`100 is out of range: it takes an integer from 64 to 16384, a power of two`},
		{`{"transports/birds/slice_bytes": 5000}`, `from 4096 to 67108864 B, a multiple of 4096`},
		{`{"transports/loft/path": "here"}`, `"here" is not an absolute path`},
		{`{"transports/birds/hours": 3}`, `unknown setting`},
		{`{"transports/birds/lanes": 1, "transports": {"birds": {"lanes": 2}}}`,
			`transports/birds/lanes is given twice`},
		{`{"metrics/http_port": 65536}`, `metrics/http_port: 65536 is out of range`},
		{`{"metrics/listen": "node7"}`, `"node7" is not a port`},
		{`{"metrics/listen": "node7:http"}`, `"http" is not a port`},
		{`{"metrics/listen": "::1:9400"}`, `"::1:9400" is not host:port`},
		{`{"policy": [{"segment_type": "memory", "transport": ["birds"]}]}`,
			`policy: entry 0: unknown key "transport"`},
		{`{"policy": [{"transports": ["birds"]}]}`, `"segment_type" is missing`},
		{`{"qos": {"version": 2}}`, `version: 2 is out of range`},
		{`{"qos": {"version": 1, "tenants": [{"name": "a", "intents": {"sleep": {}}}]}}`, `"sleep" is none of them`},
		{`{"topology/priority_matrix": {"cpu:0": ["mlx5_0"]}}`, `preferred and available`},
		{"{\n\n\"name\": }", `line 3 is not JSON`},
		{`{} {}`, `something follows`},
	} {
		_, err := Load(birdsOnly, test.settings)
		require.ErrorContains(t, err, test.want, test.settings)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), test.settings)
	}
}

func TestMistakesNameTheirSource(t *testing.T) {
	_, err := Load(Options{Env: env("TENT_CONF", `{"nam": 1}`)})
	require.ErrorContains(t, err, `environment TENT_CONF: unknown setting "nam"`)
	_, err = Load(Options{Env: env("TENT_CONF", "/nonexistent/tent.json")})
	require.ErrorContains(t, err, `cannot read the settings file "/nonexistent/tent.json": no such file or directory`)
	_, err = Load(Options{}, 7)
	require.ErrorContains(t, err, "settings of type int")
	_, err = Load(Options{}, "/dev/zero")
	require.ErrorContains(t, err, "larger than 4 MiB")
}

// The last of two blocks would win, with all that the first one has set.
func TestAKeyThatIsThereTwiceIsAMistake(t *testing.T) {
	for text, cause := range map[string]string{
		"{\"security\": {\"data\": \"sign\"},\n\"security\": {\"audit\": \"/a\"}}": "line 2: security is given",
		`{"name": "a", "name": "a"}`:                                         "argument: line 1: name is given twice in one object",
		"{\"security\":\n{\"data\": \"sign\", \"allow\": [],\n\"data\": 1}}": "line 3: security/data is given",
		`{"policies": [{}, [], {"name": "a", "n\u0061me": "b"}]}`:            "line 1: policies/2/name is given",
	} {
		_, err := Load(Options{}, text)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), text)
		require.ErrorContains(t, err, cause)
	}
	_, err := Load(Options{}, `{"security": {"data": "sign"}, "staging": {"enable": true}, "name": "security"}`)
	require.NoError(t, err, "keys of several objects, and a value that is a key elsewhere")
}

func TestNamesOfEnginesAreTakenAsPeersTakeThem(t *testing.T) {
	for name, taken := range map[string]bool{"": true, strings.Repeat("\u00e9", 127): true, "a b/c": true,
		strings.Repeat("\u00e9", 128): false, "\xff": false} {
		_, err := Load(birdsOnly, map[string]any{"name": name})
		require.Equal(t, taken, err == nil, "%q: %v", name, err)
	}
}

func TestValuesAreTakenInEveryFaithfulForm(t *testing.T) {
	c, err := Load(birdsOnly, map[string]any{"rpc_server_port": "17000", "max_batches": 16.0,
		"max_failover_attempts": uint64(0), "log_level": "warn",
		"transfer_stall_timeout": 2, "transports/birds/addresses": []string{"127.0.0.1",
			"fe80::1%eth0"}, "transports/birds/dial_timeout_ms": int64(250)})
	require.NoError(t, err)
	require.Equal(t, 17000, c.Engine.RPCServerPort)
	require.Equal(t, 16, c.Engine.MaxBatches)
	require.Zero(t, c.Engine.MaxFailoverAttempts)
	require.Equal(t, "warning", c.Engine.LogLevel)
	require.Equal(t, 2*time.Second, c.Engine.TransferStallTimeout)
	require.Equal(t, 250*time.Millisecond, c.SettingsOf("birds").(*birds).Limit)
	require.Equal(t, []string{"127.0.0.1", "fe80::1%eth0"}, c.SettingsOf("birds").(*birds).Addresses)
}

// A relative path is that of the working directory in which the settings were read, for every key that takes a file.
func TestPathsOfFilesAreAbsolute(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	files := 0
	for _, s := range newConfig(birdsOnly).settings {
		if s.Takes.What != kinds["file"].What {
			continue
		}
		files++
		for given, want := range map[string]string{"": "", "x.pem": folder + "/x.pem", "../x": folder + "/../x",
			"/a/../x": "/a/../x"} {
			taken, err := s.Takes.convert(given)
			require.NoError(t, err)
			require.Equal(t, want, taken, s.Key)
		}
	}
	require.Greater(t, files, 8)
	c, err := Load(birdsOnly, map[string]any{"security/audit": "audit.jsonl"})
	require.NoError(t, err)
	t.Chdir("/")
	require.Equal(t, folder+"/audit.jsonl", c.Engine.Audit)
	require.Equal(t, folder+"/audit.jsonl", entry(t, c, "security/audit").Value)
}

func TestKeysOfAbsentTransportsAreKeptAndInactive(t *testing.T) {
	c, err := Load(birdsOnly,
		`{"transports": {"rdma": {"rail_error_threshold": 5, "enable": false}, "io-uring": {"enable": false}}}`)
	require.NoError(t, err)
	require.Equal(t, int64(5), c.value("transports/rdma/rail_error_threshold"))
	require.Equal(t, false, c.value("transports/io_uring/enable"))
	e := entry(t, c, "transports/rdma/rail_error_threshold")
	require.False(t, e.Active)
	require.Contains(t, e.Why, "not part of this build")
	require.Len(t, c.Inactive(), 3)
	require.True(t, entry(t, c, "transports/birds/rail_error_threshold").Active)
	require.False(t, entry(t, c, "transports/tcp/max_retry_count").Active, "nothing reads it")
	require.False(t, c.Enabled("rdma"))
	require.True(t, c.Enabled("birds"))
}

func TestOnlyAskingForAnAbsentTransportFails(t *testing.T) {
	for name, branch := range map[string]string{"rdma": "rdma", "io_uring": "io_uring", "io-uring": "io_uring",
		"iouring": "io_uring", "ub": "ub"} {
		_, err := Load(birdsOnly, map[string]any{"transports": map[string]any{name: map[string]any{"enable": true}}})
		require.ErrorContains(t, err,
			"transports/"+branch+"/enable is true (argument), but transport "+branch+" is not part of this build")
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	}
}

func TestAServiceOfNamesNeedsItsAddress(t *testing.T) {
	for _, kind := range []string{"etcd", "redis", "http"} {
		_, err := Load(birdsOnly, map[string]any{"metadata_type": kind})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
		require.ErrorContains(t, err, `metadata_type is "`+kind+`" (argument), but metadata_servers names none`)
		_, err = Load(birdsOnly, map[string]any{"metadata_type": kind, "metadata_servers": "127.0.0.1:1"})
		require.NoError(t, err)
	}
}

func TestMissingHardwareMakesABranchInactive(t *testing.T) {
	o := Options{Transports: WithRails("birds", "rdma")}
	why := errors.New("/sys/class/infiniband is empty")
	c, err := Load(o)
	require.NoError(t, err)
	require.True(t, c.Enabled("rdma"))
	require.NoError(t, c.Unavailable("rdma", why), "the default asks for nothing")
	require.False(t, c.Enabled("rdma"))
	require.Contains(t, entry(t, c, "transports/rdma/rail_cooldown_secs").Why, "/sys/class/infiniband is empty")

	c, err = Load(o, `{"transports/rdma/enable": true}`)
	require.NoError(t, err)
	err = c.Unavailable("rdma", why)
	require.ErrorContains(t, err, "/sys/class/infiniband is empty")
	require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err))
}

func TestATransportBringsItsKeysByItsStruct(t *testing.T) {
	type owls struct {
		Seed int    `key:"seed" takes:"0..9" default:"1" help:"Of their dreams."`
		Loft string `key:"../loft/path" takes:"folder" help:"Shared with birds."`
		birds
	}
	o := Options{Transports: append([]Transport{{Name: "owls", Settings: owls{}}}, birdsOnly.Transports...)}
	c, err := Load(o,
		`{"transports": {"owls": {"seed": 3, "rail_error_threshold": 1, "hours": 9}, "loft": {"path": "/loft"}}}`)
	require.NoError(t, err)
	require.Equal(t, 3, c.SettingsOf("owls").(*owls).Seed)
	require.Equal(t, 9, c.SettingsOf("owls").(*owls).Hours, "the branch of this struct has the key")
	require.Equal(t, "/loft", c.SettingsOf("owls").(*owls).Loft)
	require.Equal(t, "/loft", c.SettingsOf("birds").(*birds).Loft, "the branch is shared")
	require.Equal(t, 1, c.RailOf("owls").ErrorThreshold)
	require.Equal(t, 3, c.RailOf("birds").ErrorThreshold)
	require.True(t, c.Enabled("owls"))
	require.True(t, entry(t, c, "transports/owls/seed").Active)
	require.NoError(t, c.Unavailable("owls", errors.New("it is day")))
	require.False(t, entry(t, c, "transports/owls/seed").Active)
	require.True(t, entry(t, c, "transports/loft/path").Active, "birds read it")
	require.Equal(t, "birds", c.NameOf(7))
	require.Empty(t, c.NameOf(0))
	require.Empty(t, c.NameOf(99))
	_, err = Load(o, `{"transports/owls/seed": 10}`)
	require.ErrorContains(t, err, "transports/owls/seed: 10 is out of range")
}

func TestTheConfigShowsTheValueInForce(t *testing.T) {
	c, err := Load(birdsOnly, `{"transports/birds/window_bytes": 100000}`)
	require.NoError(t, err)
	e := entry(t, c, "transports/birds/slice_bytes")
	require.Equal(t, int64(98304), e.Value, "a default follows, in whole pages")
	require.Equal(t, "default (at most transports/birds/window_bytes)", e.Origin)
	require.EqualValues(t, 98304, c.SettingsOf("birds").(*birds).Slice)
	e = entry(t, c, "transports/birds/lanes")
	require.Equal(t, int64(7), e.Value)
	require.Equal(t, "default (half the pigeons)", e.Origin)

	c, err = Load(birdsOnly, `{"transports/birds/slice_bytes": 67108864, "attempt_timeout_ms": 300}`)
	require.NoError(t, err)
	require.EqualValues(t, 64<<20, c.SettingsOf("birds").(*birds).Window)
	require.Equal(t, "default (at least transports/birds/slice_bytes)",
		entry(t, c, "transports/birds/window_bytes").Origin)
	require.Equal(t, "default (below attempt_timeout_ms)", entry(t, c, "rail_condemn_ms").Origin)

	c, err = Load(birdsOnly, `{"transports/rdma/workers/num_workers": 4}`)
	require.NoError(t, err)
	for _, key := range []string{"num_lanes", "device/num_cq_list", "endpoint/qp_mul_factor", "workers/num_workers"} {
		require.Equal(t, int64(4), c.value("transports/rdma/"+key), key)
	}
}

// TestAPointerKeepsZeroApartFromNone, also where Open completes a struct of Load. Structures keep their form.
func TestAPointerKeepsZeroApartFromNone(t *testing.T) {
	type nest struct {
		Eggs  *int           `key:"eggs" takes:"-1..9" default:"3"`
		Bytes *uint64        `key:"bytes" takes:"0..9" unit:"B" default:"4"`
		Pools []any          `key:"pools" takes:"pools"`
		Near  map[string]any `key:"../../topology/near" takes:"matrix"`
	}
	o := Options{Transports: []Transport{{Name: "birds", Settings: nest{}}}}
	for text, want := range map[string][2]int{`{}`: {3, 4},
		`{"transports/birds/eggs": 0, "transports/birds/bytes": 0}`:  {0, 0},
		`{"transports/birds/eggs": -1, "transports/birds/bytes": 9}`: {-1, 9}} {
		c, err := Load(o, text)
		require.NoError(t, err)
		s, err := Settled[nest](c.SettingsOf("birds"), "birds")
		require.NoError(t, err)
		require.Equal(t, want, [2]int{*s.Eggs, int(*s.Bytes)}, text)
		require.Nil(t, s.Pools)
	}
	c, err := Load(o, `{"transports/birds/pools": [{"name": "high", "num_qp": 2}],
		"topology/near": {"cpu:0": [["a"], []]}}`)
	require.NoError(t, err)
	s, err := Settled[nest](c.SettingsOf("birds"), "birds")
	require.NoError(t, err)
	require.Equal(t, "high", s.Pools[0].(map[string]any)["name"])
	require.Contains(t, s.Near, "cpu:0")
}

func TestSettledChecksWhatOpenIsGiven(t *testing.T) {
	plain, err := Settled[birds](nil, "birds")
	require.NoError(t, err)
	require.Equal(t, birds{Addresses: []string{"127.0.0.1"}, Lanes: 7, Requests: 1024, Slice: 1 << 20, Window: 8 << 20,
		Copies: 256 << 10, Limit: 500 * time.Millisecond, Weather: "fair"}, plain)
	given := birds{Rail: Rail{ErrorThreshold: 9}, Lanes: 3, Window: 1 << 16, quiet: true}
	for _, form := range []any{given, &given} {
		s, err := Settled[birds](form, "birds")
		require.NoError(t, err)
		require.Equal(t, 3, s.Lanes)
		require.EqualValues(t, 1<<16, s.Slice)
		require.Equal(t, 9, s.ErrorThreshold, "the core's")
		require.True(t, s.quiet)
	}
	require.Zero(t, given.Slice, "the caller's struct is not written")
	for want, wrong := range map[string]any{
		"transports/birds/lanes: 17 is out of range: it takes an integer from " +
			"1 to 16": birds{Lanes: 17},
		"transports/birds/credit_requests: 100 is out " +
			"of range": birds{Requests: 100},
		"transports/birds/copy_from: 1025 is out of range: it takes an integer from 1 to " +
			"1024 KiB": birds{Copies: 1<<20 + 1},
		"transports/birds/dial_timeout_ms: -1 is out " +
			"of range": birds{Limit: -1},
		`transports/birds/weather: "wet" is out of range: it takes one of fair, foul`: birds{Weather: "wet"},
		"transports/birds/slice_bytes is 1048576 B (argument), more than transports/birds/window_bytes is " +
			"524288 B": &birds{Slice: 1 << 20, Window: 1 << 19},
		"settings are a int, not a config.birds": 7,
	} {
		_, err := Settled[birds](wrong, "birds")
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), want)
		require.ErrorContains(t, err, want)
	}
}

func TestDumpedListsAreCopies(t *testing.T) {
	c, err := Load(birdsOnly)
	require.NoError(t, err)
	entry(t, c, "transports/birds/addresses").Value.([]string)[0] = "changed"
	require.Equal(t, []string{"127.0.0.1"}, c.SettingsOf("birds").(*birds).Addresses)
	require.Equal(t, []string{"127.0.0.1"}, c.value("transports/birds/addresses"))
	again, err := Load(birdsOnly)
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1"}, again.SettingsOf("birds").(*birds).Addresses)
}

func TestMarkdownShowsEveryKeyOnce(t *testing.T) {
	page := Markdown(birdsOnly)
	rails := map[string]bool{}
	for _, f := range fieldsOf(reflect.TypeFor[Rail](), "transports/birds") {
		rails[f.Key] = true
	}
	for _, s := range newConfig(birdsOnly).settings {
		key := s.Key
		if rails[key] {
			key = strings.Replace(key, "birds", "<name>", 1)
		}
		require.Equal(t, 1, strings.Count(page, "| `"+key+"` |"), key)
	}
	require.Contains(t, page, "\n## transports with rails\n\n`<name>` stands for each of `birds`.\n")
	require.Contains(t, page,
		"| `transports/<name>/rail_error_threshold` | an integer from 1 to 1048576 | `3` | failover seed | yes | "+
			"Errors inside the window that pause a rail. |")
	require.Contains(t, page, "| `transports/rdma/num_lanes` | an integer from 1 to 1024 | `6` | upstream | kept |")
	require.Contains(t, page, "| `transports/birds/lanes` | an integer from 1 to 16 | half the pigeons | tent | yes |")
	require.Contains(t, page,
		"| `transports/birds/window_bytes` | an integer from 4096 to 1073741824 B | `8388608` (8 MiB) |")
	require.Contains(t, page,
		"| `transports/rdma/workers/num_workers` | an integer from 1 to 1024 | that of `transports/rdma/num_lanes` |")
	require.Contains(t, page, "\n## transports/loft\n")
}

// A plug-in may leave out the range of a number. One that does not fit its type is out of range all the same.
func TestANumberWithoutARangeIsAnyNumber(t *testing.T) {
	list := []Declared{{Key: "depth", Kind: "int", Default: "4"}, {Key: "pause", Kind: "int", Unit: "ms"},
		{Key: "share", Kind: "float", Default: "-0.5"}}
	settings, err := Declare(list)
	require.NoError(t, err)
	o := Options{Transports: []Transport{{Name: "birds", Settings: settings}}}
	load := func(text string) (*Config, error) { return Load(o, `{"transports": {"birds": `+text+`}}`) }
	c, err := load(`{}`)
	require.NoError(t, err)
	require.Equal(t, []string{"4", "0", "-0.5"}, DeclaredValues(list, c.SettingsOf("birds")))
	c, err = load(`{"depth": -9007199254740993, "pause": -2000, "share": 1e300}`)
	require.NoError(t, err)
	require.Equal(t, []string{"-9007199254740993", "-2000", "1e+300"}, DeclaredValues(list, c.SettingsOf("birds")))
	for text, cause := range map[string]string{
		`{"depth": 9223372036854775808}`: "9223372036854775808 is out of range: it takes an integer",
		`{"depth": -1e30}`:               "-1e30 is out of range: it takes an integer",
		`{"pause": 9223372036855}`:       "9223372036855 is out of range: it takes an integer of ms",
		`{"depth": 0.5}`:                 "0.5 has the wrong type: it takes an integer",
		`{"share": "much"}`:              `"much" has the wrong type: it takes a number`,
	} {
		_, err := load(text)
		require.ErrorContains(t, err, cause)
	}
	_, err = Declare([]Declared{{Key: "depth", Kind: "int", Takes: "few"}})
	require.ErrorContains(t, err, `"few" is no range`)
}
