package metrics

import (
	"math/bits"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/transport"
)

// observe counts as the core does.
func observe(h *dispatch.Histogram, values ...uint64) {
	for _, v := range values {
		h.Buckets[bits.Len64(v)]++
		h.Sum += v
	}
}

func example() *Snapshot {
	s := &Snapshot{Version: "0.1.0", Protocol: "1.0", GoVersion: "go1.26", Batches: 2, PendingRequests: 7, Regions: 3,
		RegisteredBytes: 1 << 30,
		Segments:        1, Peers: 1, Notifications: Notifications{Sent: 5, Received: 6, Refused: 1, Waiting: 4},
		Failovers: []Failover{{"rdma", "tcp", 2}, {"shm", "tcp", 1}},
		Rails:     []Rail{{"tcp", "10.0.0.2:7000", "10.0.0.1", "10.0.0.2", "paused", 700, 5e8, 1 << 20, 3, 4096, true}},
		Transports: []Transport{{Name: "tcp", RailsUp: 2, RailsDown: 1, RailErrors: 3, Condemned: 1, SlowPaths: 4,
			InFlight: 4096, Faults: 2, Struck: 5, StaleCalls: 2,
			Sharing: Sharing{Processes: 3, Devices: []SharedDevice{{"eth0", 70000}}}}, {Name: "shm", RailErrors: 1}}}
	high, low := &s.Transports[0].Classes[dispatch.High], &s.Transports[0].Classes[dispatch.Low]
	high.Requests[transport.Write], high.Bytes[transport.Write] = 4, 4<<20
	low.Requests[transport.Write], low.Bytes[transport.Write], low.Failures[transport.Write] = 2, 1<<20, 1
	low.Canceled, low.TimedOut, low.Dirty = 1, 2, 3
	low.AttemptFailures[transport.Read] = 9
	low.Misses, low.Infeasible = [dispatch.MissedStages]uint64{dispatch.MissedQueued: 1, dispatch.MissedSent: 4}, 1
	s.Transports[0].Queued[dispatch.Low], s.Transports[0].QueuedBytes[dispatch.Low] = 12, 12<<20
	s.Transports[1].Classes[dispatch.High].Bytes[transport.Write] = 8
	observe(&high.ByOp[transport.Write].Latency, 0, 1, 2, 100, 127, 128, 1<<40)
	observe(&high.ByOp[transport.Write].Sizes, 1, 4096)
	observe(&low.QueueWait, 50)
	s.Refusals = []Refusals{{Plane: "control"}}
	s.Refusals[0].Counts[transport.RefusedLimit] = 3
	return s
}

func TestTextIsWhatPrometheusReads(t *testing.T) {
	text, err := Text(example())
	require.NoError(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	require.Len(t, parsed, len(families), "every family is there, also without events")
	for _, line := range []string{
		`tent_write_bytes_total{class="high",transport="tcp"} 4.194304e+06`,
		`tent_transport_failover_total{from="rdma",to="tcp"} 2`,
		`tent_transport_attempt_failures_total{class="low",operation="read",transport="tcp"} 9`,
		`tent_rails{state="down",transport="tcp"} 1`,
		`tent_refused_total{plane="control",reason="limit"} 3`,
		`tent_refused_total{plane="control",reason="proof"} 0`,
		`tent_rail_health{local="10.0.0.1",peer="10.0.0.2:7000",remote="10.0.0.2",transport="tcp"} 700`,
		`tent_rail_state{local="10.0.0.1",peer="10.0.0.2:7000",remote="10.0.0.2",state="paused",transport="tcp"} 1`,
		`tent_rail_failures_total{local="10.0.0.1",peer="10.0.0.2:7000",remote="10.0.0.2",transport="tcp"} 3`,
		`tent_faults{transport="tcp"} 2`,
		`tent_shared_processes{transport="tcp"} 3`,
		`tent_shared_processes{transport="shm"} 0`,
		`tent_shared_others_bytes{device="eth0",transport="tcp"} 70000`,
		`tent_faults_injected_total{transport="tcp"} 5`,
		`tent_stale_calls_total{transport="tcp"} 2`,
		`tent_queue_depth{class="low",transport="tcp"} 12`,
		`tent_queue_bytes{class="low",transport="tcp"} 1.2582912e+07`,
		`tent_queue_bytes{class="high",transport="tcp"} 0`,
		`tent_deadline_misses_total{class="low",stage="queued",transport="tcp"} 1`,
		`tent_deadline_misses_total{class="low",stage="sent",transport="tcp"} 4`,
		`tent_deadline_infeasible_total{class="low",transport="tcp"} 1`,
		`tent_build_info{go_version="go1.26",protocol="1.0",version="0.1.0"} 1`,
		`# TYPE tent_read_latency_us histogram`,
		`tent_read_latency_us_count{class="high",transport="tcp"} 0`,
		`# HELP tent_rail_errors_total Errors that counted against a rail.`,
	} {
		require.Contains(t, text, line+"\n")
	}
}

// A peer names its NICs. One name that is no text must not hide the series of others.
func TestASeriesThatCannotBeShownCostsItselfAlone(t *testing.T) {
	s := example()
	s.Rails = append(s.Rails, Rail{Transport: "rdma", Peer: "10.0.0.3:7000", Local: "mlx5_0", Remote: "\xff\n"},
		Rail{Transport: "rdma", Peer: "10.0.0.4:7000", Local: "mlx5_0", Remote: "mlx5_0", State: "up", Bytes: 7})
	text, err := Text(s)
	require.NoError(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	require.Len(t, parsed, len(families))
	require.Contains(t, text,
		`tent_rail_bytes_total{local="mlx5_0",peer="10.0.0.4:7000",remote="mlx5_0",transport="rdma"} 7`)
	require.NotContains(t, text, "10.0.0.3:7000")
	require.Regexp(t, "\n# series are missing: .*UTF-8.*\n$", text)
}

func TestRailsOfEqualNamesAreOneSeries(t *testing.T) {
	const transport, peer = "rdma", "127.0.0.1:7000"
	s := example()
	s.Rails = MergeRails([]Rail{
		{transport, peer, "mlx5_0", "mlx5_0", "up", 1000, 3e9, 10, 1, 100, false},
		{transport, peer, "mlx5_0", "mlx5_1", "up", 900, 1e9, 1, 0, 0, false},
		{transport, peer, "mlx5_0", "mlx5_0", "down", 300, 1e9, 5, 2, 0, true},
		{transport, peer, "mlx5_0", "mlx5_0", "paused", 400, 0, 7, 0, 0, false},
	})
	require.Equal(t, []Rail{{transport, peer, "mlx5_0", "mlx5_0", "down", 300, 4e9, 22, 3, 100, true},
		{transport, peer, "mlx5_0", "mlx5_1", "up", 900, 1e9, 1, 0, 0, false}}, s.Rails)
	text, err := Text(s)
	require.NoError(t, err)
	require.NotContains(t, text, "missing")
}

func TestBucketsCountExactlyUpToTheirBound(t *testing.T) {
	text, err := Text(example())
	require.NoError(t, err)
	for bound, count := range map[string]string{"1": "2", "3": "3", "63": "3", "127": "5", "255": "6",
		"1.34217727e+08": "6", "+Inf": "7"} {
		require.Contains(t, text,
			`tent_write_latency_us_bucket{class="high",transport="tcp",le="`+bound+`"} `+count+"\n")
	}
	require.Contains(t, text, `tent_write_size_bytes_bucket{class="high",transport="tcp",le="4095"} 1`+"\n")
	require.Contains(t, text, `tent_write_size_bytes_bucket{class="high",transport="tcp",le="8191"} 2`+"\n")
}

func TestFlatSumsAreTheSumsOfTheirSeries(t *testing.T) {
	flat := Flat(example())
	for name, want := range map[string]float64{
		"tent_write_bytes_total":                                    5<<20 + 8,
		`tent_write_bytes_total{transport="tcp"}`:                   5 << 20,
		`tent_write_bytes_total{transport="tcp",class="high"}`:      4 << 20,
		`tent_write_bytes_total{transport="shm",class="low"}`:       0,
		"tent_rail_errors_total":                                    4,
		`tent_rail_errors_total{transport="tcp"}`:                   3,
		"tent_transport_failover_total":                             3,
		`tent_transport_failover_total{from="shm",to="tcp"}`:        1,
		"tent_write_latency_us_count":                               7,
		`tent_write_size_bytes_sum{transport="tcp"}`:                4097,
		`tent_stage_queue_wait_us_sum{transport="tcp",class="low"}`: 50,
		"tent_dirty_total":                                          3,
		"tent_deadline_misses_total":                                5,
		"tent_notifications_waiting":                                4,
		"tent_read_bytes_total":                                     0,
	} {
		got, there := flat[name]
		require.True(t, there, name)
		require.Equal(t, want, got, name)
	}
}

// A dashboard or a test may look before anything has happened.
func TestEveryNameIsThereFromTheStart(t *testing.T) {
	flat := Flat(&Snapshot{})
	for _, f := range families {
		name := f.name
		if f.kind == histogram {
			name += "_count"
		}
		require.Contains(t, flat, name)
	}
}

// Upstream's dashboards name these; see the package doc for the two that are missing.
func TestUpstreamNamesTypesAndLabels(t *testing.T) {
	upstream := map[string]family{}
	for _, op := range []string{"read", "write"} {
		for _, what := range []string{"bytes", "requests", "failures"} {
			upstream["tent_"+op+"_"+what+"_total"] = family{kind: counter, labels: []string{"transport"}}
		}
		upstream["tent_"+op+"_latency_us"] = family{kind: histogram, labels: []string{"transport"}}
		upstream["tent_"+op+"_size_bytes"] = family{kind: histogram, labels: []string{"transport"}}
	}
	upstream["tent_transport_failover_total"] = family{kind: counter, labels: []string{"from", "to"}}
	upstream["tent_transport_attempts_total"] = family{kind: counter, labels: []string{"transport", "operation"}}
	upstream["tent_transport_attempt_failures_total"] = family{kind: counter,
		labels: []string{"transport", "operation"}}
	upstream["tent_transport_attempt_latency_us"] = family{kind: histogram, labels: []string{"transport", "operation"}}
	upstream["tent_deadline_infeasible_total"] = family{kind: counter, labels: []string{"transport"}}
	upstream["tent_stage_queue_wait_us"] = family{kind: histogram, labels: []string{"transport"}}
	for _, f := range families {
		if want, found := upstream[f.name]; found {
			require.Equal(t, want.kind, f.kind, f.name)
			require.Subset(t, f.labels, want.labels, f.name)
			delete(upstream, f.name)
		}
	}
	require.Empty(t, upstream, "upstream's metrics that are not rendered")
}

func TestTwoEnginesInOneRegistryNeedOnlyALabel(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, name := range []string{"prefill", "decode"} {
		wrapped := prometheus.WrapRegistererWith(prometheus.Labels{"engine": name}, registry)
		require.NoError(t, wrapped.Register(Collector(example)))
	}
	gathered, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, gathered, len(families))
}

func BenchmarkText(b *testing.B) {
	s := example()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Text(s); err != nil {
			b.Fatal(err)
		}
	}
}
