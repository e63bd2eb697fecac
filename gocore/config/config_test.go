package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

var tcpOnly = Options{Built: []string{"tcp"}}

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
	c, err := Load(tcpOnly)
	require.NoError(t, err)
	require.Equal(t, Engine{RPCServerPort: 0, MetadataType: "p2p", LogLevel: "info", MergeRequests: true, MaxFailoverAttempts: 3,
		TransferStallTimeout: 30 * time.Second, FenceTimeoutHost: 100 * time.Millisecond,
		FenceTimeoutNetwork: time.Second, FenceTimeoutFile: 5 * time.Second, TransferSyncTimeout: 10 * time.Minute, MaxPendingRequests: 1 << 20, MaxBatches: 65536, NotificationQueue: 65536,
		AttemptTimeout: 10 * time.Second, ResendRounds: 8, ResendInterval: time.Millisecond,
		RailSuspectAfter: 5 * time.Millisecond, RailCondemnAfter: time.Second, InlineBytes: 256 << 10,
		LinkWait: 500 * time.Millisecond, OutageWait: 2 * time.Second}, c.Engine)
	require.Equal(t, TCP{Enable: true, Addresses: []string{"127.0.0.1"}, RailPairs: "matched", Congestion: "auto"}, c.TCP)
	seed := Rail{ErrorThreshold: 3, ErrorWindow: 10 * time.Second, Cooldown: 30 * time.Second, CooldownMax: 300 * time.Second,
		PromotionTimeout: 10 * time.Millisecond, AllowCrossNUMA: true, HealthSensitivity: 100, HealthRecovery: 10,
		ProbeInterval: 10 * time.Millisecond, SoftOutMax: 0.75,
		Filtering: true, FilterInterval: 200 * time.Microsecond, SlotInterval: 2 * time.Millisecond, SlotBorrow: true}
	require.Equal(t, map[string]*Rail{"tcp": &seed, "rdma": &seed, "io_uring": &seed, "buf-io": &seed}, c.Rails)
	require.Same(t, c.Rails["io_uring"], c.RailOf("io-uring"))
	for _, e := range c.Dump() {
		require.Equal(t, OriginDefault, e.Origin, e.Key)
	}
	require.Empty(t, c.Inactive(), "nobody set anything")
}

func TestArgumentsWinOverEnvironmentKeyByKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tent.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"merge_requests": false, "transports": {"tcp": {"lanes": 2, "port": 7}}}`), 0o600))
	o := tcpOnly
	o.Env = env("TENT_CONF", file, "MC_TENT_CONF", `{"name": "weak", "log_level": "error", "transports/tcp/port": 6}`)
	c, err := Load(o, `{"transports/tcp/lanes": 4}`, map[string]any{"transports": map[string]any{"tcp/credit_requests": 9}, "name": nil})
	require.NoError(t, err)

	require.Equal(t, 4, c.TCP.Lanes)
	require.Equal(t, 7, c.TCP.Port)
	require.Equal(t, 9, c.TCP.CreditRequests)
	require.Equal(t, "weak", c.Engine.Name, "a null is not a value")
	require.False(t, c.Engine.MergeRequests)
	for key, origin := range map[string]string{
		"transports/tcp/lanes": "argument", "transports/tcp/credit_requests": "argument",
		"transports/tcp/port": "environment TENT_CONF=" + file, "log_level": "environment MC_TENT_CONF", "transports/tcp/lease_ms": "default",
	} {
		require.Equal(t, origin, entry(t, c, key).Origin, key)
	}
}

func TestMistakesNameKeyAndWhatItTakes(t *testing.T) {
	for _, test := range []struct{ settings, want string }{
		{`{"transports": {"tcp": {"lane": 2}}}`, `unknown setting "transports/tcp/lane"; the nearest known setting is "transports/tcp/lanes", which takes an integer from 0 to 64`},
		{`{"topology/rdma_allowlist": []}`, `nearest known setting is "topology/rdma_whitelist"`},
		{`{"lanes": 2}`, `nearest known setting is "transports/tcp/lanes"`},
		{`{"transport": {"tcp": {"lanes": 2}}}`, `unknown setting "transport/tcp/lanes"; the nearest known setting is "transports/tcp/lanes"`},
		{`{"transports": {"carrier-pigeon": {}}}`, `unknown setting "transports/carrier-pigeon"`},
		{`{"transports": {"tcp": true}}`, `transports/tcp: true has the wrong type: it takes an object`},
		{`{"merge_requests": 1}`, `merge_requests: 1 has the wrong type: it takes true or false`},
		{`{"max_failover_attempts": true}`, `max_failover_attempts: true has the wrong type: it takes an integer from 0 to 1000`},
		{`{"max_failover_attempts": -1}`, `max_failover_attempts: -1 is out of range`},
		{`{"max_failover_attempts": 2.5}`, `2.5 has the wrong type`},
		{`{"max_failover_attempts": 1e400}`, `1e400 has the wrong type`},
		{`{"max_pending_requests": 18446744073709551616}`, `18446744073709551616 is out of range`},
		{`{"rpc_server_port": "http"}`, `rpc_server_port: "http" has the wrong type`},
		{`{"rpc_server_port": 65536}`, `65536 is out of range: it takes an integer from 0 to 65535`},
		{`{"transfer_stall_timeout": "30s"}`, `it takes a number from 0.01 to 86400 s`},
		{`{"log_level": "loud"}`, `"loud" is out of range: it takes one of debug, info, warning, error`},
		{`{"transports/rdma/endpoint/service_level": 16}`, `transports/rdma/endpoint/service_level: 16 is out of range: it takes an integer from 0 to 15`},
		{`{"transports/rdma/endpoint/path_mtu": 1500}`, `512, 1024, 2048 or 4096`},
		{`{"transports/rdma/num_lanes": 4, "transports/rdma/workers/num_workers": 2}`, `set only transports/rdma/num_lanes`},
		{`{"transports/tcp/addresses": ["localhost"]}`, `"localhost" is not an IP address`},
		{`{"transports/tcp/addresses": ["10.0.0.1", "10.0.0.1"]}`, `listed twice`},
		{`{"transports/tcp/addresses": "10.0.0.1"}`, `it takes a list of IP addresses`},
		{`{"transports/tcp/addresses": ["0.0.0.0"]}`, `not the address of one interface`},
		{`{"transports/tcp/rail_cooldown_secs": 400}`, `more than transports/tcp/rail_cooldown_max_secs`},
		{`{"transports/tcp/lanes": 1, "transports": {"tcp": {"lanes": 2}}}`, `transports/tcp/lanes is given twice`},
		{`{"metrics/http_port": 0}`, `metrics/http_port: 0 is out of range`},
		{`{"policy": [{"segment_type": "memory", "transport": ["tcp"]}]}`, `policy: entry 0: unknown key "transport"`},
		{`{"policy": [{"transports": ["tcp"]}]}`, `"segment_type" is missing`},
		{`{"qos": {"version": 2}}`, `version: 2 is out of range`},
		{`{"qos": {"version": 1, "tenants": [{"name": "a", "intents": {"sleep": {}}}]}}`, `"sleep" is none of them`},
		{`{"topology/priority_matrix": {"cpu:0": ["mlx5_0"]}}`, `preferred and available`},
		{"{\n\n\"name\": }", `line 3 is not JSON`},
		{`{} {}`, `something follows`},
	} {
		_, err := Load(tcpOnly, test.settings)
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

func TestValuesAreTakenInEveryFaithfulForm(t *testing.T) {
	c, err := Load(tcpOnly, map[string]any{"rpc_server_port": "17000", "max_batches": 16.0, "max_failover_attempts": uint64(0),
		"transfer_stall_timeout": 2, "transports/tcp/addresses": []string{"127.0.0.1", "fe80::1%eth0"}, "transports/tcp/dial_timeout_ms": int64(250)})
	require.NoError(t, err)
	require.Equal(t, 17000, c.Engine.RPCServerPort)
	require.Equal(t, 16, c.Engine.MaxBatches)
	require.Zero(t, c.Engine.MaxFailoverAttempts)
	require.Equal(t, 2*time.Second, c.Engine.TransferStallTimeout)
	require.Equal(t, 250*time.Millisecond, c.TCP.DialTimeout)
	require.Equal(t, []string{"127.0.0.1", "fe80::1%eth0"}, c.TCP.Addresses)
}

func TestKeysOfAbsentTransportsAreKeptAndInactive(t *testing.T) {
	c, err := Load(tcpOnly, `{"transports": {"rdma": {"rail_error_threshold": 5, "enable": false}, "io-uring": {"enable": false}}}`)
	require.NoError(t, err)
	require.Equal(t, int64(5), c.Value("transports/rdma/rail_error_threshold"))
	require.Equal(t, false, c.Value("transports/io-uring/enable"))
	e := entry(t, c, "transports/rdma/rail_error_threshold")
	require.False(t, e.Active)
	require.Contains(t, e.Why, "not part of this build")
	require.Len(t, c.Inactive(), 3)
	require.True(t, entry(t, c, "transports/tcp/rail_error_threshold").Active)
	require.False(t, entry(t, c, "transports/tcp/max_retry_count").Active, "nothing reads it")
	require.False(t, c.Enabled("rdma"))
	require.True(t, c.Enabled("tcp"))
}

func TestOnlyAskingForAnAbsentTransportFails(t *testing.T) {
	for _, name := range []string{"rdma", "shm", "io_uring", "io-uring", "buf-io", "nvlink", "mnnvl", "gds", "ascend_direct", "ascend", "ub", "tpu", "mpcomm", "sunrise_link"} {
		_, err := Load(tcpOnly, map[string]any{"transports": map[string]any{name: map[string]any{"enable": true}}})
		require.ErrorContains(t, err, "transports/"+branchOf(name)+"/enable is true (argument), but transport "+branchOf(name)+" is not part of this build")
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	}
	_, err := Load(tcpOnly, `{"metadata_type": "etcd"}`)
	require.Equal(t, errs.NotImplemented, errs.CodeOf(err))
}

func TestMissingHardwareMakesABranchInactive(t *testing.T) {
	o := Options{Built: []string{"tcp", "rdma"}}
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

func TestANewTransportBringsItsKeysWithoutTheTable(t *testing.T) {
	o := Options{Built: []string{"tcp", "sim"}, Settings: []Setting{
		{"transports/sim/seed", Takes{Kind: Int, Min: 0, Max: 9}, int64(1), "sim", "Seed of the simulated network."}}}
	c, err := Load(o, `{"transports": {"sim": {"seed": 3, "rail_error_threshold": 1}}}`)
	require.NoError(t, err)
	require.Equal(t, int64(3), c.Value("transports/sim/seed"))
	require.Equal(t, 1, c.Rails["sim"].ErrorThreshold)
	require.True(t, c.Enabled("sim"))
	require.True(t, entry(t, c, "transports/sim/seed").Active)
	_, err = Load(o, `{"transports/sim/seed": 10}`)
	require.ErrorContains(t, err, "transports/sim/seed: 10 is out of range")
}

func TestDumpedListsAreCopies(t *testing.T) {
	c, err := Load(tcpOnly)
	require.NoError(t, err)
	entry(t, c, "transports/tcp/addresses").Value.([]string)[0] = "changed"
	require.Equal(t, []string{"127.0.0.1"}, c.TCP.Addresses)
	require.Equal(t, []string{"127.0.0.1"}, c.Value("transports/tcp/addresses"))
	again, err := Load(tcpOnly)
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1"}, again.TCP.Addresses)
}

func TestMarkdownShowsEveryKeyOnce(t *testing.T) {
	page := Markdown(tcpOnly)
	for _, s := range known(tcpOnly) {
		require.Equal(t, 1, strings.Count(page, "| `"+s.Key+"` |"), s.Key)
	}
	require.Contains(t, page, "| `transports/tcp/rail_error_threshold` | an integer from 1 to 1048576 | `3` | failover seed | yes | Errors inside the window that pause a rail. |")
	require.Contains(t, page, "| `transports/rdma/num_lanes` | an integer from 1 to 1024 | `6` | upstream | kept |")
}
