/* The calls of the header. Each enters Go as go_ and its name, but not in a child that was forked without exec: Go's
 * threads, which start when the library is loaded, are not there, and a call would wait for them without end. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#undef TENT_TYPES_ONLY /* the compiler compares the calls with their declarations */
#include "last_error.h"
#include "include/tent/transfer_engine.h"

static atomic_int forked;

static void note_fork(void) { forked = 1; }

__attribute__((constructor)) static void follow_forks(void) { pthread_atfork(NULL, NULL, note_fork); }

/* Whether this process is a forked child of one that had loaded the library. The error says so then. */
static int refused(void) {
	static const char text[] = "FORK: libtent.so does not survive fork(): the child makes its engines behind an exec";
	if (!atomic_load_explicit(&forked, memory_order_relaxed)) return 0;
	tent_set_error(text, sizeof text - 1);
	return 1;
}

#define CALL(result, none, name, parameters, arguments) \
	extern result go_##name parameters;                 \
	result tent_##name parameters { return refused() ? (none) : go_##name arguments; }

#define DO(name, parameters, arguments) \
	extern void go_##name parameters;   \
	void tent_##name parameters {       \
		if (!refused()) go_##name arguments; \
	}

DO(load_config_from_file, (const char *path), (path))
DO(set_config, (const char *key, const char *value), (key, value))
CALL(tent_engine_t, NULL, create_engine, (void), ())
DO(destroy_engine, (tent_engine_t engine), (engine))
CALL(int, 0, available, (tent_engine_t engine), (engine))
CALL(int, -1, transport_number, (tent_engine_t engine, const char *name), (engine, name))
CALL(int, -1, segment_name, (tent_engine_t engine, char *buf, size_t buf_len), (engine, buf, buf_len))
CALL(int, -1, rpc_server_addr_port, (tent_engine_t engine, char *addr_buf, size_t buf_len, uint16_t *port),
     (engine, addr_buf, buf_len, port))
CALL(int, -1, open_segment, (tent_engine_t engine, tent_segment_id_t *handle, const char *segment_name),
     (engine, handle, segment_name))
CALL(int, -1, open_segment_of, (tent_engine_t engine, tent_segment_id_t *handle, const char *segment_name,
     const char *identity), (engine, handle, segment_name, identity))
CALL(int, -1, close_segment, (tent_engine_t engine, tent_segment_id_t handle), (engine, handle))
CALL(int, -1, get_segment_info, (tent_engine_t engine, tent_segment_id_t handle, tent_segment_info_t *info),
     (engine, handle, info))
CALL(int, -1, disconnect, (tent_engine_t engine, const char *who), (engine, who))
CALL(int, -1, reload_security, (tent_engine_t engine), (engine))
CALL(int, -1, allocate_memory, (tent_engine_t engine, void **addr, size_t size, const char *location),
     (engine, addr, size, location))
CALL(int, -1, allocate_memory_ex, (tent_engine_t engine, void **addr, size_t size, tent_memory_options_t *opts),
     (engine, addr, size, opts))
CALL(int, -1, free_memory, (tent_engine_t engine, void *addr), (engine, addr))
CALL(int, -1, register_memory, (tent_engine_t engine, void *addr, size_t size), (engine, addr, size))
CALL(int, -1, register_memory_with_perm, (tent_engine_t engine, void *addr, size_t size, int permission),
     (engine, addr, size, permission))
CALL(int, -1, register_memory_ex, (tent_engine_t engine, void *addr, size_t size, tent_memory_options_t *opts),
     (engine, addr, size, opts))
CALL(int, -1, register_memory_batch, (tent_engine_t engine, void **addrs, size_t *sizes, size_t count, int permission),
     (engine, addrs, sizes, count, permission))
CALL(int, -1, register_memory_batch_ex, (tent_engine_t engine, void **addrs, size_t *sizes, size_t count,
     tent_memory_options_t *opts), (engine, addrs, sizes, count, opts))
CALL(int, -1, register_memory_for, (tent_engine_t engine, void *addr, size_t size, tent_memory_options_t *opts,
     const char *peers), (engine, addr, size, opts, peers))
CALL(int, -1, unregister_memory, (tent_engine_t engine, void *addr, size_t size), (engine, addr, size))
CALL(int, -1, register_growable_memory, (tent_engine_t engine, void *addr, size_t size, tent_memory_options_t *opts),
     (engine, addr, size, opts))
CALL(int, -1, remap_memory, (tent_engine_t engine, void *addr, size_t offset, size_t length),
     (engine, addr, offset, length))
CALL(int, -1, unregister_memory_batch, (tent_engine_t engine, void **addrs, size_t *sizes, size_t count),
     (engine, addrs, sizes, count))
CALL(tent_batch_id_t, 0, allocate_batch, (tent_engine_t engine, size_t batch_size), (engine, batch_size))
CALL(int, -1, free_batch, (tent_engine_t engine, tent_batch_id_t batch_id), (engine, batch_id))
CALL(int, -1, submit, (tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count),
     (engine, batch_id, entries, count))
CALL(int, -1, submit_notif, (tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count,
     const char *name, const char *message), (engine, batch_id, entries, count, name, message))
CALL(int, -1, cancel_task, (tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id),
     (engine, batch_id, task_id))
CALL(int, -1, cancel_batch, (tent_engine_t engine, tent_batch_id_t batch_id), (engine, batch_id))
CALL(int, -1, task_status, (tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id, tent_status_t *status),
     (engine, batch_id, task_id, status))
CALL(int, -1, task_status_list, (tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *statuses,
     size_t *count), (engine, batch_id, statuses, count))
CALL(int, -1, overall_status, (tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *status),
     (engine, batch_id, status))
CALL(int, -1, send_notifs, (tent_engine_t engine, tent_segment_id_t handle, const char *name, const char *message),
     (engine, handle, name, message))
CALL(int, -1, recv_notifs, (tent_engine_t engine, tent_notifi_info *info), (engine, info))
CALL(int, -1, wait, (tent_engine_t engine, tent_batch_id_t batch_id, int64_t timeout_ms, tent_status_t *status),
     (engine, batch_id, timeout_ms, status))
CALL(int, -1, wait_on, (tent_engine_t engine, tent_batch_id_t batch_id, uint64_t stream, uint64_t *word),
     (engine, batch_id, stream, word))
CALL(int, -1, send_notif, (tent_engine_t engine, tent_segment_id_t handle, const void *name, size_t name_bytes,
     const void *message, size_t message_bytes), (engine, handle, name, name_bytes, message, message_bytes))
CALL(int, -1, submit_ex, (tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count,
     const tent_submit_options_t *options), (engine, batch_id, entries, count, options))
CALL(int, -1, batch_failure, (tent_engine_t engine, tent_batch_id_t batch_id, char *buf, size_t buf_len),
     (engine, batch_id, buf, buf_len))
CALL(int, -1, share_memory, (tent_engine_t engine, void *addr, size_t size, const tent_lease_options_t *opts,
     tent_lease_t *lease), (engine, addr, size, opts, lease))
CALL(int, -1, share_ranges, (tent_engine_t engine, const tent_range_t *ranges, size_t count,
     const tent_lease_options_t *opts, tent_lease_t *lease), (engine, ranges, count, opts, lease))
CALL(int, -1, lease_token, (tent_engine_t engine, tent_lease_t lease, char *buf, size_t buf_len),
     (engine, lease, buf, buf_len))
CALL(int, -1, renew_lease, (tent_engine_t engine, tent_lease_t lease, int64_t expires_ms), (engine, lease, expires_ms))
CALL(int, -1, close_lease, (tent_engine_t engine, tent_lease_t lease), (engine, lease))
CALL(int, -1, open_lease, (tent_engine_t engine, tent_segment_id_t *handle, tent_segment_id_t peer,
     const char *token, uint64_t *size), (engine, handle, peer, token, size))
CALL(int, -1, probe_peer, (tent_engine_t engine, tent_segment_id_t handle, int64_t timeout_ms),
     (engine, handle, timeout_ms))
CALL(int, -1, recv_notif, (tent_engine_t engine, int64_t timeout_ms, tent_notif_t *notif), (engine, timeout_ms, notif))
CALL(char *, NULL, describe, (tent_engine_t engine, const char *what), (engine, what))

/* Memory that a call gave is C's own, and a child may give it back too. */

void tent_free_text(char *text) { free(text); }

void tent_free_segment_info(tent_segment_info_t *info) {
	if (!info) return;
	free(info->buffers);
	*info = (tent_segment_info_t){0};
}

void tent_free_notifs(tent_notifi_info *info) {
	if (!info) return;
	free(info->records);
	*info = (tent_notifi_info){0};
}

void tent_free_notif(tent_notif_t *notif) {
	if (!notif) return;
	free(notif->name);
	free(notif->message);
	free(notif->peer);
	*notif = (tent_notif_t){0};
}
