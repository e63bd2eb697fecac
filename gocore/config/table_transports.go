package config

// Keys that tent's own transports read say 0 or "" for "the transport decides": its package doc has the number and the
// reason for it.
var (
	milliseconds = integer(0, 3600e3).in("ms")
	sharedName   = Takes{Kind: Text, What: `"" or a name of shared memory, as in "/mooncake_rdma_slots"`, Check: checkSharedName}
	folders      = Takes{Kind: Texts, What: "a list of absolute paths of folders", Check: checkFolders}
	fileSlice    = Takes{Kind: Int, Min: 0, Max: 64 * mebibyte, Unit: "B", What: "0, or a multiple of 4096 up to 67108864", Check: checkFileSlice}
	addresses    = Takes{Kind: Texts, What: `a list of IP addresses of this machine, as in ["10.0.0.5", "fd00::5"]`, Check: checkAddresses}
)

// transportTable are the keys of transports other than rdma, without those of railTable.
var transportTable = []Setting{
	{"transports/tcp/enable", boolean, true, transportsSeed, "Use tcp."},
	{"transports/tcp/addresses", addresses, []string{"127.0.0.1"}, tent, "Local ends of rails, and where data is accepted."},
	{"transports/tcp/rail_pairs", oneOf("matched", "all"), "matched", tent, "Rails towards a peer: pairs in one subnet, else the i-th with the i-th; or every pair."},
	{"transports/tcp/port", port, int64(0), tent, "Port that accepts data on every address; 0 takes a free one."},
	{"transports/tcp/lanes", integer(0, 64), int64(0), tent, "Connections of a rail for each of its two groups of classes; 0: the transport decides."},
	{"transports/tcp/congestion", text, "auto", tent, `Congestion control by the kernel's name; "auto" chooses one for peers on this host, "" keeps the system's.`},
	{"transports/tcp/dial_timeout_ms", milliseconds, int64(0), tent, "Limit of one dial; 0: the transport decides."},
	{"transports/tcp/user_timeout_ms", milliseconds, int64(0), tent, "TCP_USER_TIMEOUT: sent bytes without acknowledgement end the connection; 0: the transport decides."},
	{"transports/tcp/lease_ms", milliseconds, int64(0), tent, "A receiver that was stopped for longer asks before it writes what its sockets hold; 0: the transport decides."},
	{"transports/tcp/slice_bytes", integer(0, gibibyte).in("B"), int64(0), tent, "Most bytes of a slice; 0: the transport decides."},
	{"transports/tcp/window_bytes", integer(0, gibibyte).in("B"), int64(0), tent, "Bytes in flight on a rail; 0: the transport decides."},
	{"transports/tcp/credit_bytes", integer(0, gibibyte).in("B"), int64(0), tent, "Bytes of READs that a peer may have asked for and not received; 0: the transport decides."},
	{"transports/tcp/credit_requests", integer(0, 1<<20), int64(0), tent, "READs that a peer may have asked for and not received; 0: the transport decides."},
	{"transports/tcp/max_retry_count", integer(0, 1000), int64(3), upstream, "Kept for upstream's files: the core retries for every transport."},
	{"transports/tcp/retry_base_delay_ms", integer(0, 3600e3).in("ms"), int64(100), upstream, "Kept for upstream's files: the core retries for every transport."},
	{"transports/tcp/retry_max_delay_ms", integer(0, 3600e3).in("ms"), int64(2000), upstream, "Kept for upstream's files: the core retries for every transport."},
	{"transports/tcp/max_concurrent_tasks", integer(1, 1<<20), int64(16), upstream, "Kept for upstream's files: windows bound what is under way, not threads."},

	{"transports/shm/enable", boolean, true, tent, "Use shm. Upstream has it off, because its copies are not NUMA-aware; here it is the fastest way by far."},
	{"transports/shm/cxl_mount_path", text, "", transportsSeed, "Mounted folder of CXL or DAX memory whose files back allocated memory; empty allocates anonymous memory."},
	{"transports/shm/async_memcpy_threshold", integer(0, 1<<20).in("KiB"), int64(0), transportsSeed, "Most that a call copies itself; what is more is queued for copiers. 0: the transport decides."},
	{"transports/shm/trust", oneOf("same-uid", "none"), "same-uid", tent, "Peers that may touch memory directly: those of the same user, or nobody (all then goes by tcp)."},
	{"transports/shm/allow_any_tracer", boolean, false, tent, "Where Yama allows one process to touch memory that tent did not allocate, allow all of the same user."},
	{"transports/shm/copy_workers", integer(0, 64), int64(0), tent, "Threads that copy what no caller copies; 0: one less than there are cores."},

	{"transports/file/roots", folders, []string(nil), tent, "Folders that files are opened from; empty: every file that the process may open. Peers never open files."},
	{"transports/file/descriptors", integer(0, 1<<20), int64(0), tent, "Files kept open while no transfer uses them; 0: the transport decides."},
	{"transports/io_uring/enable", boolean, true, transportsSeed, "Use io_uring for files."},
	{"transports/io_uring/direct", oneOf("auto", "off"), "auto", tent, "auto takes the files that can be read and written past the page cache and leaves others to buf-io; off takes every file, through the page cache."},
	{"transports/io_uring/depth", integer(0, 4096), int64(0), tent, "Operations in the kernel at once; 0: the transport decides."},
	{"transports/io_uring/slice_bytes", fileSlice, int64(0), tent, "Most bytes of a slice; 0: the transport decides."},
	{"transports/io_uring/window_bytes", integer(0, gibibyte).in("B"), int64(0), tent, "Bytes in flight on a file; 0: the transport decides."},
	{"transports/buf-io/enable", boolean, true, transportsSeed, "Use buffered reads and writes for files."},
	{"transports/buf-io/workers", integer(0, 256), int64(0), tent, "Threads that read and write; 0: the transport decides."},
	{"transports/buf-io/slice_bytes", fileSlice, int64(0), tent, "Most bytes of a slice; 0: the transport decides."},
	{"transports/buf-io/window_bytes", integer(0, gibibyte).in("B"), int64(0), tent, "Bytes in flight on a file; 0: the transport decides."},

	{"transports/nvlink/enable", boolean, true, transportsSeed, "Use NVLink between GPUs of a host."},
	{"transports/nvlink/async_memcpy_threshold", integer(0, 1<<30).in("KiB"), int64(0), upstream, "Size from which a copy is asynchronous."},
	{"transports/nvlink/host_register", boolean, false, transportsSeed, "Pin host memory for the GPU driver."},
	{"transports/nvlink/handle_type", oneOf("fabric", "posix_fd"), "fabric", upstream, "How multi-node memory is shared."},
	{"transports/mnnvl/enable", boolean, true, transportsSeed, "Use NVLink across hosts."},
	{"transports/mnnvl/async_memcpy_threshold", integer(0, 1<<30).in("KiB"), int64(1024), upstream, "Size from which a copy is asynchronous."},
	{"transports/mnnvl/host_register", boolean, true, upstream, "Pin host memory for the GPU driver."},
	{"transports/mnnvl/handle_type", oneOf("fabric", "posix_fd"), "fabric", transportsSeed, "How memory is shared."},

	{"transports/gds/enable", boolean, false, transportsSeed, "Use GPUDirect Storage."},
	{"transports/gds/io_batch_depth", integer(1, 4096), int64(32), upstream, "Slices in one cuFile batch."},

	{"transports/ascend_direct/enable", boolean, true, transportsSeed, "Use HIXL between NPUs."},
	{"transports/ascend_direct/transfer_timeout_ns", integer(1, 1e15).in("ns"), int64(3e6), upstream, "Limit of one transfer."},
	{"transports/ascend_direct/connect_timeout_ns", integer(1, 1e15).in("ns"), int64(3e6), upstream, "Limit of one connect."},
	{"transports/ascend_direct/rdma_tc", text, "", upstream, "Traffic class given to HIXL."},
	{"transports/ascend_direct/rdma_sl", text, "", upstream, "Service level given to HIXL."},
	{"transports/ascend_direct/auto_connect", text, "", upstream, "Given to HIXL."},

	{"transports/sunrise_link/enable", boolean, true, upstream, "Use Sunrise links."},
	{"transports/sunrise_link/async_memcpy_threshold", integer(0, 1<<30).in("KiB"), int64(0), upstream, "Size from which a copy is asynchronous."},
	{"transports/sunrise_link/enable_port_striping", boolean, false, upstream, "Stripe over ports."},
	{"transports/tpu/enable", boolean, true, upstream, "Use TPU memory by PJRT."},
	{"transports/mpcomm/enable", boolean, true, upstream, "Use MPCOMM."},
	{"transports/mpcomm/disable_gpu_direct_rdma", boolean, false, upstream, "Stage GPU memory through the host."},

	{"transports/ub/enable", boolean, false, upstream, "Use UB."},
	{"transports/ub/device_filter", texts, []string(nil), upstream, "Names of UB devices to use."},
	{"transports/ub/worker_count", integer(1, 1024), int64(6), upstream, "Workers."},
	{"transports/ub/poller_count", integer(1, 1024), int64(2), upstream, "Pollers."},
	{"transports/ub/jfc_per_context", integer(1, 1024), int64(6), upstream, "Completion queues of a device."},
	{"transports/ub/jetty_per_endpoint", integer(1, 1024), int64(6), upstream, "Queue pairs of a link."},
	{"transports/ub/max_endpoints", integer(1, 1<<24), int64(65536), upstream, "Links kept."},
	{"transports/ub/slice_size", integer(1, gibibyte).in("B"), int64(65536), upstream, "Bytes of a slice."},
	{"transports/ub/max_retries", integer(0, 1000), int64(8), upstream, "Retries of a slice."},
	{"transports/ub/slice_timeout_ms", integer(1, 3600e3).in("ms"), int64(5000), upstream, "Limit of a slice."},
	{"transports/ub/endpoint_cooldown_ms", integer(0, 3600e3).in("ms"), int64(1000), upstream, "Pause of a failed link."},
	{"transports/ub/enable_bandwidth_estimation", boolean, true, upstream, "Learn rates."},
	{"transports/ub/enable_notifications", boolean, false, upstream, "Carry notifications."},
}
