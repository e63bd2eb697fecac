package config

import (
	"slices"
	"strings"
)

// Short forms of what rows take.
var (
	boolean = Takes{Kind: Bool}
	text    = Takes{Kind: Text}
	texts   = Takes{Kind: Texts}
	port    = Takes{Kind: Int, Min: 0, Max: 65535, Numeric: true}
)

func integer(least, most float64) Takes { return Takes{Kind: Int, Min: least, Max: most} }
func oneOf(choices ...string) Takes     { return Takes{Kind: Text, Choices: choices} }

// in gives a number its unit; real makes its values fractions.
func (t Takes) in(unit string) Takes { t.Unit = unit; return t }
func (t Takes) real() Takes          { t.Kind = Float; return t }

// Bounds that rows share.
const (
	day      = 86400
	mebibyte = 1 << 20
	gibibyte = 1 << 30
	tebibyte = 1 << 40
)

// engineTable are the keys outside of transports. Defaults and ranges are upstream's where the source says so.
var engineTable = []Setting{
	{"name", text, "", tent, "Name of the engine, shown to peers and in logs; empty chooses one."},
	{"metadata_type", oneOf("p2p", "etcd", "redis", "http"), "p2p", upstream, "Where names of segments are found; p2p needs no service."},
	{"metadata_servers", text, "", upstream, "Address of the metadata service; unused with p2p."},
	{"local_segment_name", text, "", upstream, "Name under which a metadata service lists this engine; unused with p2p, where the address is the name."},
	{"rpc_server_hostname", text, "", upstream, "Host that Engine.address tells to peers; the control plane listens there and on every address in transports/*/addresses. Empty is loopback."},
	{"rpc_server_port", port, int64(0), upstream, "Port of the control plane; 0 takes a free one."},
	{"rpc_server_threads", integer(1, 1024), int64(1), upstream, "Kept for upstream's files: payload never travels by RPC here, and calls need no threads of their own."},
	{"log_level", oneOf("debug", "info", "warning", "error"), "info", upstream, "Least level of log records."},
	{"verbose", boolean, false, upstream, "Kept for upstream's files: see log_level and the metrics."},
	{"merge_requests", boolean, true, upstream, "Neighbouring requests of one submit that agree in everything share slices."},
	{"max_failover_attempts", integer(0, 1000), int64(3), failoverSeed, "Switches of transport a task may make; 0 means never, 1 exactly one."},
	{"enable_auto_failover_on_poll", boolean, true, upstream, "A status poll may move a failed task to its next transport."},
	{"enable_progress_worker", boolean, false, upstream, "Kept for upstream's files: progress never depends on polling here."},
	{"use_legacy_transport_selection", boolean, false, upstream, "Selection by a fixed order, without policies."},
	{"transfer_stall_timeout", integer(0.01, day).real().in("s"), 30.0, tent, "A transfer without a deadline ends after this long without progress while it is being served."},
	{"fence_timeout_host_ms", integer(1, 60000).in("ms"), int64(100), tent, "After a deadline or cancel, how long a peer on this host may take to confirm before a transfer ends dirty."},
	{"fence_timeout_network_ms", integer(1, 60000).in("ms"), int64(1000), tent, "The same for a peer on another host."},
	{"fence_timeout_file_ms", integer(1, 600000).in("ms"), int64(5000), tent, "The same for the kernel and a file: a device that does not answer keeps the memory in use beyond it."},
	{"transfer_sync_timeout", integer(0.01, day).real().in("s"), 600.0, tent, "A transfer with durability ends as TIMEOUT when its files were not on stable storage so long after its last byte."},
	{"attempt_timeout_ms", integer(1, 3600e3).in("ms"), int64(10000), lnetSeed, "Time without a sign of life from its rail after which an attempt has failed, whoever else is silent: the request tries its next transport."},
	{"resend_rounds", integer(1, 255), int64(8), lnetSeed, "Rounds in which a failed slice tries all rails of a transport before its request takes the next one."},
	{"resend_interval_ms", integer(1, 60000).in("ms"), int64(1), lnetSeed, "Pause behind the first round; it doubles with each, up to 128 times."},
	{"rail_suspect_ms", integer(1, 60000).in("ms"), int64(5), tent, "A rail that is silent for three times what is expected, and at least so long, while others of its peer are not, is suspected: what it holds goes over others, too."},
	{"rail_condemn_ms", integer(1, 600000).in("ms"), int64(1000), tent, "A suspected rail that stays silent for so long is given up and made anew."},
	{"link_wait_ms", integer(1, 600000).in("ms"), int64(500), tent, "A request without another way waits so long for a transport that has had no connection to its peer yet."},
	{"outage_wait_ms", integer(1, 3600e3).in("ms"), int64(2000), tent, "And so long for one that has worked before: a cable that was pulled, or a switch that restarts its ports, is often back soon."},
	{"max_pending_requests", integer(1, 1<<24), int64(1 << 20), tent, "Requests that have not ended; a submit beyond it is refused whole."},
	{"max_batches", integer(1, 1<<20), int64(65536), tent, "Batches alive at once."},
	{"inline_bytes", integer(0, gibibyte).in("B"), int64(256 << 10), tent, "Most bytes that a call may move on the caller's own thread before it returns, where the transport can; 0 means never."},
	{"notification_queue", integer(1, 1<<20), int64(65536), tent, "Notifications waiting to be read; a full queue holds the senders' completions back."},
	{"allow_faults", boolean, false, tent, "Faults may be injected into this engine's transports and control plane: for tests. TENT_FAULTS sets it too."},
	{"faults", text, "", tent, "Faults from the start, in the language of transports/faulty, as in TENT_FAULTS; needs allow_faults."},
	{"enable_runtime_queue", boolean, false, upstream, "Upstream's queue in front of the transports; here every request is queued by class and released by window."},
	{"runtime_queue/max_outstanding_owners", integer(1, 1<<24), int64(1024), upstream, "Requests in the runtime queue."},
	{"runtime_queue/max_outstanding_bytes", integer(1, tebibyte).in("B"), int64(gibibyte), upstream, "Bytes in the runtime queue."},
	{"runtime_queue/staging_owner_reserve", integer(0, 1<<24), int64(0), upstream, "Room kept for staged requests."},
	{"runtime_queue/staging_byte_reserve", integer(0, tebibyte).in("B"), int64(0), upstream, "Bytes kept for staged requests."},
	{"runtime_queue/deadline_aware", boolean, false, upstream, "Earliest deadline first instead of first come."},
	{"runtime_queue/mlu_local_threshold", integer(0, 1000).real(), 0.0, upstream, "Predicted utilisation beyond which hopeless requests are dropped; 0 is off."},
	{"runtime_queue/promotion_slack_ns", integer(0, 1e18).in("ns"), int64(0), upstream, "Slack below which a request is moved forward; 0 is off."},
	{"runtime_queue/max_dispatch_owners", integer(1, 1<<24), int64(64), upstream, "Requests released at once."},
	{"runtime_queue/max_dispatch_bytes", integer(1, tebibyte).in("B"), int64(64 * mebibyte), upstream, "Bytes released at once."},
	{"runtime_queue/progress_fallback_interval_us", integer(1, 1e9).in("us"), int64(50000), upstream, "Safety poll of the runtime queue."},
	{"topology/rdma_whitelist", texts, []string(nil), upstream, "Names of RDMA NICs to use; empty means all."},
	{"topology/rdma_blacklist", texts, []string(nil), upstream, "Names of RDMA NICs to leave alone; unused beside a whitelist."},
	{"topology/priority_matrix", matrixTakes, nil, upstream, "NICs by memory location, preferred and available; instead of discovery."},
	{"topology/custom_json_path", text, "", upstream, "File with a topology or a priority matrix."},
	{"policy", policyTakes, nil, upstream, "Rules that choose and order transports by request; the first match counts."},
	{"qos", qosTakes, nil, upstream, "Contract of priorities and limits by tenant and intent."},
	{"metrics/enabled", boolean, true, upstream, "Kept for upstream's files: counting is always on and costs nothing measurable."},
	{"metrics/http_port", integer(1, 65535), int64(9100), upstream, "Port of upstream's exporter."},
	{"metrics/http_host", text, "0.0.0.0", upstream, "Address of upstream's exporter."},
	{"metrics/http_server_threads", integer(1, 1024), int64(2), upstream, "Threads of upstream's exporter."},
	{"metrics/report_interval_seconds", integer(0, day).in("s"), int64(30), upstream, "Interval of upstream's summary line."},
	{"metrics/latency_buckets", anything, nil, upstream, "No longer read by upstream; kept for its files."},
	{"metrics/size_buckets", anything, nil, upstream, "No longer read by upstream; kept for its files."},
	{"metrics/enable_prometheus", boolean, true, upstream, "No longer read by upstream; kept for its files."},
	{"metrics/enable_json", boolean, true, upstream, "No longer read by upstream; kept for its files."},
}

// railTable are the keys that every transport with rails takes below its own branch.
var railTable = []Setting{
	{"rail_error_threshold", integer(1, 1<<20), int64(3), failoverSeed, "Errors inside the window that pause a rail."},
	{"rail_error_window_secs", integer(0.001, day).real().in("s"), 10.0, failoverSeed, "Sliding window in which errors of a rail are counted."},
	{"rail_cooldown_secs", integer(0.001, day).real().in("s"), 30.0, failoverSeed, "First pause of a rail; it doubles with each further one."},
	{"rail_cooldown_max_secs", integer(0.001, day).real().in("s"), 300.0, failoverSeed, "Longest pause of a rail; a constant of the seed."},
	{"rail_health_sensitivity", integer(1, 1000), int64(100), lnetSeed, "What a failure takes from the health of a rail, which is 1000 at best; rails that differ by less are equals."},
	{"rail_health_recovery", integer(1, 1000), int64(10), lnetSeed, "What a success gives back to the health of a rail."},
	{"rail_probe_interval_ms", integer(1, 60000).in("ms"), int64(10), tent, "A rail that is out is asked so often whether it works, as long as something is to be sent to its peer."},
	{"rail_soft_out_max", integer(0.01, 1).real(), 0.75, tent, "Share of the rails of a peer that silence alone may take out at once; one of two always may, the last never."},
	{"allow_cross_numa", boolean, true, transportsSeed, "NICs of another NUMA node than the memory's help when the near ones have no room. If false they do so only when no near one is left."},
	{"enable_priority_filtering", boolean, true, qosSeed, "NICs take turns in refusing lower classes while a higher one has work; of several rails to a peer, one always takes each class."},
	{"local_rotation_interval_us", integer(1, 1e9).in("us"), int64(200), qosSeed, "Interval of those turns."},
	{"priority_promotion_timeout_us", integer(0, 1e9).in("us"), int64(10000), qosSeed, "Time since a waiting class was last served on a rail after which its head gets one turn."},
	{"priority_promotion_per_entry", boolean, false, upstream, "As many turns in the time-out as requests of the class wait, instead of one."},
	{"deadline_bw_arbitration", boolean, false, upstream, "Order inside a class by slack: deadline - now - bytes / rate; requests without a deadline come last, and one that would be late at twice the best measured rate ends as TIMEOUT unsent."},
	{"slot_rotation_interval_ms", integer(1, 60000).in("ms"), int64(2), qosSeed, "Length of a time slot shared by the processes of a host."},
	{"slot_borrow", boolean, true, tent, "A slot that no process has wanted for a higher class for one interval may be used by the lower ones. Without it LOW has a third of the time also on an idle host; with it the first HIGH request after a pause finds at most one window of LOW in front of it."},
	{"shared_quota_shm_path", sharedName, "", qosSeed, "Name of the shared memory by which the processes of a host share slots and the load of NICs; all of one user, and with one slot_rotation_interval_ms. Empty is off."},
}

// railed are the transports of the table that have rails.
var railed = []string{"tcp", "rdma", "io_uring", "buf-io"}

// aliases map other spellings of a transport, the seeds' and upstream's own, to its branch.
var aliases = map[string]string{"io-uring": "io_uring", "iouring": "io_uring", "buf_io": "buf-io", "bufio": "buf-io",
	"ascend": "ascend_direct"}

// families are the branches that several transports share, by the branches of those.
var families = map[string]string{"io_uring": "file", "buf-io": "file"}

// branchOf is the branch of a transport below "transports", from its name.
func branchOf(transport string) string {
	if branch, found := aliases[transport]; found {
		return branch
	}
	return transport
}

// canonical replaces another spelling of a transport in a key.
func canonical(key string) string {
	rest, found := strings.CutPrefix(key, "transports/")
	if !found {
		return key
	}
	name, below, deeper := strings.Cut(rest, "/")
	if key = "transports/" + branchOf(name); deeper {
		key += "/" + below
	}
	return key
}

// known lists all settings of a build, in the order in which documents show them.
func known(o Options) []Setting {
	all := slices.Concat(engineTable, transportTable, rdmaTable)
	for _, name := range railed {
		all = append(all, below(name, railTable)...)
	}
	for _, name := range o.Built {
		if branch := branchOf(name); !slices.ContainsFunc(all, func(s Setting) bool { return s.Key == enableKey(branch) }) {
			all = append(all, Setting{enableKey(branch), boolean, true, tent, "Use transport " + branch + "."})
			all = append(all, below(branch, railTable)...)
		}
	}
	all = append(all, o.Settings...)
	slices.SortStableFunc(all, func(a, b Setting) int { return strings.Compare(group(a.Key), group(b.Key)) })
	return all
}

// group keeps the keys of a transport together, behind all others.
func group(key string) string {
	if rest, found := strings.CutPrefix(key, "transports/"); found {
		name, _, _ := strings.Cut(rest, "/")
		return "transports/" + name
	}
	return ""
}

// below puts keys under a transport's branch.
func below(branch string, rows []Setting) []Setting {
	out := slices.Clone(rows)
	for i := range out {
		out[i].Key = "transports/" + branch + "/" + out[i].Key
	}
	return out
}
