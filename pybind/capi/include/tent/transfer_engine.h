/* tent for C and C++: libtent.so, built by `make capi`.
 *
 * The calls, constants and structs are those that programs for Mooncake's TENT know; calls beyond those stand at the end of
 * the C part. C++ programs find the class mooncake::tent::TransferEngine below it, a thin layer over the C calls.
 *
 * Conventions. A call returns 0, or a number that its comment explains. -1 is an error, and then tent_last_error() of the
 * same thread says why in one sentence. Any thread may call with any engine. Addresses are plain pointers; the caller keeps
 * registered memory mapped until it is unregistered, and the bytes of a transfer as they are until its status is final: then
 * nobody reads or writes them any more. Sizes and offsets count bytes. In a child that was forked without exec all calls fail
 * with FORK, but for those that return what a call gave: tent_free_text, tent_free_notif, tent_free_notifs and
 * tent_free_segment_info. It makes engines behind an exec.
 */
#ifndef TENT_TRANSFER_ENGINE_H
#define TENT_TRANSFER_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "request.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void *tent_engine_t;
typedef uint64_t tent_batch_id_t; /* 0 is none */

enum {
	STATUS_WAITING = 0, /* never seen after a submit */
	STATUS_PENDING = 1,
	STATUS_INVALID = 2, /* from here on final */
	STATUS_CANCELED = 3,
	STATUS_COMPLETED = 4,
	STATUS_TIMEOUT = 5,
	STATUS_FAILED = 6
};

enum { TYPE_MEMORY = 0, TYPE_FILE = 1 };

enum { PERM_LOCAL_READ_WRITE = 0, PERM_GLOBAL_READ_ONLY = 1, PERM_GLOBAL_READ_WRITE = 2 }; /* what peers may do */

/* Transports: written by go test ./transports/all -rewrite. */
enum {
	TRANSPORT_UNSPEC = 0, /* tent chooses */
	TRANSPORT_RDMA = 1,
	TRANSPORT_MNNVL = 2,
	TRANSPORT_SHM = 3,
	TRANSPORT_NVLINK = 4,
	TRANSPORT_GDS = 5,
	TRANSPORT_IOURING = 6,
	TRANSPORT_TCP = 7,
	TRANSPORT_ASCEND_DIRECT = 8,
	TRANSPORT_SUNRISE_LINK = 9,
	TRANSPORT_TPU = 10,
	TRANSPORT_UB = 11,
	TRANSPORT_MPCOMM = 12,
	TRANSPORT_HP_TCP = 13
};
/* End of transports. */

struct tent_status {
	int status;
	uint64_t transferred_bytes; /* acknowledged so far; never falls */
};
typedef struct tent_status tent_status_t;

struct tent_buffer_info {
	uint64_t base, length;
	char location[64];
};

struct tent_segment_info {
	int type;
	int num_buffers;
	struct tent_buffer_info *buffers; /* given back by tent_free_segment_info */
};
typedef struct tent_segment_info tent_segment_info_t;

struct tent_notifi_record {
	tent_segment_id_t handle; /* 0: a sender is not one of the open segments */
	char name[256];
	char msg[4096]; /* ends with a 0; a longer message is cut: tent_recv_notif takes any */
};
typedef struct tent_notifi_record tent_notifi_record_t;

struct tent_notifi_info {
	int num_records;
	struct tent_notifi_record *records; /* given back by tent_free_notifs */
};
typedef struct tent_notifi_info tent_notifi_info;

struct tent_memory_options {
	char location[64];  /* "cpu:0", or "*" or "" for any */
	int permission;     /* PERM_* */
	int transport_type; /* not looked at: every transport that fits has the memory */
	char shm_path[256]; /* not looked at */
	size_t shm_offset;  /* not looked at */
	int internal;       /* not looked at */
};
typedef struct tent_memory_options tent_memory_options_t;

typedef uint64_t tent_lease_t; /* 0 is none */

/* Bytes of registered or allocated memory. */
struct tent_range {
	void *addr;
	size_t size;
};
typedef struct tent_range tent_range_t;

/* Zero it before filling it in. */
struct tent_lease_options {
	int permission;     /* PERM_*; 0 is that of the memory, or all that it allows where no peer may use the memory itself */
	const char *peers;  /* patterns of identities with spaces between; NULL: those of the memory */
	const char *name;   /* by which peers may find it; NULL: by its token alone */
	int64_t expires_ms; /* it ends after this time; 0: no end of its own */
};
typedef struct tent_lease_options tent_lease_options_t;

/* A notification of any length, given back by tent_free_notif. */
struct tent_notif {
	char *name, *message, *peer; /* each with a 0 behind its bytes */
	size_t name_bytes, message_bytes;
};
typedef struct tent_notif tent_notif_t;

#ifndef TENT_TYPES_ONLY

/* Settings for the next tent_create_engine of this thread: a file of JSON, or one key such as
 * "transports/tcp/addresses". A value that is JSON is taken as such, anything else as a string. tent_create_engine
 * reports wrong ones. */
void tent_load_config_from_file(const char *path);
void tent_set_config(const char *key, const char *value);

/* NULL if it cannot be made. */
tent_engine_t tent_create_engine(void);
/* Cancels all transfers, and returns when their memory cannot be touched any more, at most 39 s later: 30 s for peers and
 * drivers to let it go, and 3 s for each of the other steps. tent_last_error() is "" then; else it says what may still be
 * touched, as by a kernel that has not given an operation back. Threads that destroy an engine beside one another all wait for
 * that end. */
void tent_destroy_engine(tent_engine_t engine);
/* 1 while the engine is open, else 0, as in a forked child. */
int tent_available(tent_engine_t engine);
/* The number for transport_hint of a transport by its name, as tent_describe shows it; also a plug-in's. -1: none. */
int tent_transport_number(tent_engine_t engine, const char *name);

/* The name by which peers open this engine, "host:port". -1 if buf is too short. */
int tent_segment_name(tent_engine_t engine, char *buf, size_t buf_len);
int tent_rpc_server_addr_port(tent_engine_t engine, char *addr_buf, size_t buf_len, uint16_t *port);

/* "host:port", "host:port/region", "file:///path", or "" for the engine's own memory. NULL is an error. Fails at once if
 * nobody is there. */
int tent_open_segment(tent_engine_t engine, tent_segment_id_t *handle, const char *segment_name);
/* Another engine with one of these identities, or none: patterns with spaces between, NULL for any. */
int tent_open_segment_of(tent_engine_t engine, tent_segment_id_t *handle, const char *segment_name,
                         const char *identity);
int tent_close_segment(tent_engine_t engine, tent_segment_id_t handle);
int tent_get_segment_info(tent_engine_t engine, tent_segment_id_t handle, tent_segment_info_t *info);
void tent_free_segment_info(tent_segment_info_t *info);

/* Ends the access of peers by address, id or pattern of identities; they stay out. Returns how many, -1 after an error.
 * tent_describe(engine, "peers") lists them. */
int tent_disconnect(tent_engine_t engine, const char *who);
/* Reads the files of security/cert, key and ca again: 1 if they have changed, 0 if not, -1 after an error. */
int tent_reload_security(tent_engine_t engine);

/* Memory that tent allocates, zeroed and reachable by peers as its permission says (default: read and write). Registering it
 * changes nothing, and unregistering it keeps peers out until it is registered again. It outlives its engine: behind
 * tent_destroy_engine the program still uses its bytes, until tent_free_memory with the same handle. */
int tent_allocate_memory(tent_engine_t engine, void **addr, size_t size, const char *location);
int tent_allocate_memory_ex(tent_engine_t engine, void **addr, size_t size, tent_memory_options_t *opts);
int tent_free_memory(tent_engine_t engine, void *addr);

/* Memory of the program. Registering the same range again changes nothing, and is refused with another permission or for
 * other peers. Batches are all or nothing. */
int tent_register_memory(tent_engine_t engine, void *addr, size_t size);
int tent_register_memory_with_perm(tent_engine_t engine, void *addr, size_t size, int permission);
int tent_register_memory_ex(tent_engine_t engine, void *addr, size_t size, tent_memory_options_t *opts);
int tent_register_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes, size_t count, int permission);
int tent_register_memory_batch_ex(tent_engine_t engine, void **addrs, size_t *sizes, size_t count,
                                  tent_memory_options_t *opts);
/* For the peers of some identities alone: patterns with spaces between, such as "dns:*.prefill.svc uid:1000", or "id:" and
 * the 32 hexadecimal digits of one engine (16 or more and a *). NULL is all peers. Others do not learn of the range. */
int tent_register_memory_for(tent_engine_t engine, void *addr, size_t size, tent_memory_options_t *opts,
                             const char *peers);
/* Size 0 goes by the address alone, and is refused where several registered ranges begin there. Returns when no peer can
 * touch the bytes any more. After an error the range is still registered and its memory in use: call again. */
int tent_unregister_memory(tent_engine_t engine, void *addr, size_t size);
/* Memory with pages missing, such as a reservation that fills: a transfer that needs bytes without pages fails as
 * ADDRESS_NOT_REGISTERED, and no other does. Call tent_remap_memory when pages came or went. */
int tent_register_growable_memory(tent_engine_t engine, void *addr, size_t size, tent_memory_options_t *opts);
/* After the program has mapped other pages, or none, behind a range of registered memory: peers reach these, and nothing
 * that began before touches the range when it returns. It is done for each registered range that begins at addr and has the
 * bytes in it. */
int tent_remap_memory(tent_engine_t engine, void *addr, size_t offset, size_t length);
/* None of the ranges where one is not registered. After another error those that are back are unregistered, and
 * tent_unregister_memory ends the others. sizes may be NULL. */
int tent_unregister_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes, size_t count);

/* A batch takes up to batch_size requests, in one submit or several. 0 if it cannot be made. */
tent_batch_id_t tent_allocate_batch(tent_engine_t engine, size_t batch_size);
int tent_free_batch(tent_engine_t engine, tent_batch_id_t batch_id);
/* All requests or none. */
int tent_submit(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count);
/* The notification goes to the target after the last byte of the batch. */
int tent_submit_notif(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count,
                      const char *name, const char *message);
/* Asks a task to end soon; one that has ended stays as it is. */
int tent_cancel_task(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id);
/* The same for a batch as a whole, also where it waits for its files or its notification alone. */
int tent_cancel_batch(tent_engine_t engine, tent_batch_id_t batch_id);
int tent_task_status(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id, tent_status_t *status);
/* *count: in, how many fit; out, how many tasks the batch has. */
int tent_task_status_list(tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *statuses, size_t *count);
int tent_overall_status(tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *status);

int tent_send_notifs(tent_engine_t engine, tent_segment_id_t handle, const char *name, const char *message);
/* Everything that has arrived, without waiting. */
int tent_recv_notifs(tent_engine_t engine, tent_notifi_info *info);
void tent_free_notifs(tent_notifi_info *info);

/* Beyond the calls above. */

/* Why the last call of this thread returned -1, NULL or batch 0; "" if none has. Valid until this thread's next call. */
const char *tent_last_error(void);
/* Waits for the end of every task; 1 if timeout_ms were not enough: the batch goes on. status may be NULL. */
int tent_wait(tent_engine_t engine, tent_batch_id_t batch_id, int64_t timeout_ms, tent_status_t *status);
/* Makes a stream of a device (CUstream as a number, CU_STREAM_LEGACY is 1) wait for the end of a batch, whichever it is, and
 * returns at once. *word, unless NULL, gets the address on the device of 32 bits: 0, and then the state (STATUS_*), until
 * tent_free_batch. Give the requests a deadline: the stream waits as long as they take. */
int tent_wait_on(tent_engine_t engine, tent_batch_id_t batch_id, uint64_t stream, uint64_t *word);
/* tent_send_notifs with a name and a message of any bytes, zero bytes among them. */
int tent_send_notif(tent_engine_t engine, tent_segment_id_t handle, const void *name, size_t name_bytes,
                    const void *message, size_t message_bytes);
/* options may be NULL. */
int tent_submit_ex(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count,
                   const tent_submit_options_t *options);
/* Why a batch did not complete, as JSON; -1 if buf is too short. */
int tent_batch_failure(tent_engine_t engine, tent_batch_id_t batch_id, char *buf, size_t buf_len);
/* Gives peers a part of registered or allocated memory for a time. opts may be NULL. The lease ends with its memory at the
 * latest. Where registered ranges overlap, it is of the smallest one that has all of its bytes, and ends with that one. */
int tent_share_memory(tent_engine_t engine, void *addr, size_t size, const tent_lease_options_t *opts, tent_lease_t *lease);
/* The same for several ranges of one piece of memory, pages for example: at most 1024 that do not follow one another, none
 * overlapping another. Offsets of peers count through them in their order; a request lies inside one range. */
int tent_share_ranges(tent_engine_t engine, const tent_range_t *ranges, size_t count, const tent_lease_options_t *opts,
                      tent_lease_t *lease);
/* Text of at most 64 characters for a handshake of the program: it names the lease and gives no rights. */
int tent_lease_token(tent_engine_t engine, tent_lease_t lease, char *buf, size_t buf_len);
/* Another end, counted from now on; 0 is none. Fails when the lease has ended. */
int tent_renew_lease(tent_engine_t engine, tent_lease_t lease, int64_t expires_ms);
/* Returns when no peer can touch the bytes by the lease any more. Closing it twice is no mistake. */
int tent_close_lease(tent_engine_t engine, tent_lease_t lease);
/* The peer's side: opens the lease of a token as a segment, on which offsets count from 0. peer is the segment of the
 * owner, opened as a whole. *size, unless NULL, gets the bytes of the lease. tent_close_segment closes it. */
int tent_open_lease(tent_engine_t engine, tent_segment_id_t *handle, tent_segment_id_t peer, const char *token,
                    uint64_t *size);
/* 1 if the peer answers in its incarnation, 0 if not. */
int tent_probe_peer(tent_engine_t engine, tent_segment_id_t handle, int64_t timeout_ms);
/* One notification of any length: 1 if there was one within timeout_ms, else 0. */
int tent_recv_notif(tent_engine_t engine, int64_t timeout_ms, tent_notif_t *notif);
void tent_free_notif(tent_notif_t *notif);
/* "metrics" (Prometheus text), "topology", "peers" or "config" as a string that tent_free_text gives back; NULL if it
 * cannot. */
char *tent_describe(tent_engine_t engine, const char *what);
void tent_free_text(char *text);

#endif /* TENT_TYPES_ONLY */

#ifdef __cplusplus
} /* extern "C" */

#ifndef TENT_TYPES_ONLY
#include <cstring>
#include <string>
#include <vector>

namespace mooncake {
namespace tent {

using BatchID = uint64_t;

enum Permission { kLocalReadWrite = 0, kGlobalReadOnly = 1, kGlobalReadWrite = 2 };
enum class TransferStatusEnum { INITIAL, PENDING, INVALID, CANCELED, COMPLETED, TIMEOUT, FAILED };

struct TransferStatus {
	TransferStatusEnum s = TransferStatusEnum::INITIAL;
	size_t transferred_bytes = 0;
};

struct Notification {
	std::string name, msg;
};

/* The outcome of a call: ok(), or a sentence. */
class Status {
   public:
	static Status of(int result) { return result < 0 ? Status(tent_last_error()) : Status(); }
	bool ok() const { return ok_; }
	const std::string &message() const { return message_; }
	std::string ToString() const { return ok_ ? "OK" : message_; }
	explicit Status(const char *message) : ok_(false), message_(message) {}

   private:
	Status() = default;
	bool ok_ = true;
	std::string message_;
};

/* An engine; it ends with the object. The constructors do not throw: see available(), and tent_last_error() for the reason. */
class TransferEngine {
   public:
	TransferEngine() : engine_(tent_create_engine()) {}
	explicit TransferEngine(const std::string &config_path) {
		tent_load_config_from_file(config_path.c_str());
		engine_ = tent_create_engine();
	}
	~TransferEngine() {
		if (engine_) tent_destroy_engine(engine_);
	}
	TransferEngine(const TransferEngine &) = delete;
	TransferEngine &operator=(const TransferEngine &) = delete;

	bool available() const { return engine_ && tent_available(engine_); }
	tent_engine_t handle() const { return engine_; }
	int transportNumber(const std::string &name) const { return tent_transport_number(engine_, name.c_str()); }

	std::string getSegmentName() const {
		char name[512] = "";
		tent_segment_name(engine_, name, sizeof name);
		return name;
	}
	std::string getRpcServerAddress() const {
		char address[512] = "";
		tent_rpc_server_addr_port(engine_, address, sizeof address, nullptr);
		return address;
	}
	uint16_t getRpcServerPort() const {
		uint16_t port = 0;
		char address[512];
		tent_rpc_server_addr_port(engine_, address, sizeof address, &port);
		return port;
	}

	Status openSegment(SegmentID &handle, const std::string &name) {
		return Status::of(tent_open_segment(engine_, &handle, name.c_str()));
	}
	Status closeSegment(SegmentID handle) { return Status::of(tent_close_segment(engine_, handle)); }

	Status allocateLocalMemory(void **addr, size_t size, const std::string &location = "*") {
		return Status::of(tent_allocate_memory(engine_, addr, size, location.c_str()));
	}
	Status freeLocalMemory(void *addr) { return Status::of(tent_free_memory(engine_, addr)); }
	Status registerLocalMemory(void *addr, size_t size, Permission permission = kGlobalReadWrite) {
		return Status::of(tent_register_memory_with_perm(engine_, addr, size, permission));
	}
	Status unregisterLocalMemory(void *addr, size_t size = 0) {
		return Status::of(tent_unregister_memory(engine_, addr, size));
	}

	Status shareMemory(void *addr, size_t size, tent_lease_t &lease, const tent_lease_options_t &options = {}) {
		return Status::of(tent_share_memory(engine_, addr, size, &options, &lease));
	}
	Status shareMemory(const std::vector<tent_range_t> &ranges, tent_lease_t &lease,
	                   const tent_lease_options_t &options = {}) {
		return Status::of(tent_share_ranges(engine_, ranges.data(), ranges.size(), &options, &lease));
	}
	Status leaseToken(tent_lease_t lease, std::string &token) {
		char text[65] = "";
		Status result = Status::of(tent_lease_token(engine_, lease, text, sizeof text));
		if (result.ok()) token = text;
		return result;
	}
	Status renewLease(tent_lease_t lease, int64_t expires_ms) {
		return Status::of(tent_renew_lease(engine_, lease, expires_ms));
	}
	Status closeLease(tent_lease_t lease) { return Status::of(tent_close_lease(engine_, lease)); }
	Status openLease(SegmentID &handle, SegmentID peer, const std::string &token, uint64_t *size = nullptr) {
		return Status::of(tent_open_lease(engine_, &handle, peer, token.c_str(), size));
	}

	BatchID allocateBatch(size_t batch_size) { return tent_allocate_batch(engine_, batch_size); }
	Status freeBatch(BatchID batch_id) { return Status::of(tent_free_batch(engine_, batch_id)); }

	Status submitTransfer(BatchID batch_id, const std::vector<Request> &requests) {
		tent_submit_options_t options = {};
		return submit(batch_id, requests, options);
	}
	Status submitTransfer(BatchID batch_id, const std::vector<Request> &requests, const Notification &notification) {
		tent_submit_options_t options = {};
		if (notification.name.find('\0') != std::string::npos)
			return Status("INVALID_ARGUMENT: the name of the notification has a zero byte, where C's texts end");
		options.notify = 1;
		options.name = notification.name.c_str();
		options.message = notification.msg.data();
		options.message_bytes = notification.msg.size();
		return submit(batch_id, requests, options);
	}
	/* Makes a stream of a device wait for the end of a batch: see tent_wait_on. */
	Status waitOn(BatchID batch_id, uint64_t stream, uint64_t *word = nullptr) {
		return Status::of(tent_wait_on(engine_, batch_id, stream, word));
	}
	Status cancelTransfer(BatchID batch_id, size_t task_id) {
		return Status::of(tent_cancel_task(engine_, batch_id, task_id));
	}
	Status cancelBatch(BatchID batch_id) { return Status::of(tent_cancel_batch(engine_, batch_id)); }

	Status getTransferStatus(BatchID batch_id, size_t task_id, TransferStatus &status) {
		tent_status_t raw;
		Status result = Status::of(tent_task_status(engine_, batch_id, task_id, &raw));
		if (result.ok()) status = converted(raw);
		return result;
	}
	Status getTransferStatus(BatchID batch_id, std::vector<TransferStatus> &list) {
		size_t count = 0;
		if (tent_task_status_list(engine_, batch_id, nullptr, &count) < 0) return Status::of(-1);
		std::vector<tent_status_t> raw(count);
		Status result = Status::of(tent_task_status_list(engine_, batch_id, raw.data(), &count));
		list.clear();
		for (const tent_status_t &one : raw) list.push_back(converted(one));
		return result;
	}
	Status getTransferStatus(BatchID batch_id, TransferStatus &overall) {
		tent_status_t raw;
		Status result = Status::of(tent_overall_status(engine_, batch_id, &raw));
		if (result.ok()) overall = converted(raw);
		return result;
	}
	Status progressBatch(BatchID batch_id, TransferStatus &overall) { return getTransferStatus(batch_id, overall); }

	Status sendNotification(SegmentID target, const Notification &n) {
		return Status::of(
		    tent_send_notif(engine_, target, n.name.data(), n.name.size(), n.msg.data(), n.msg.size()));
	}
	Status receiveNotification(std::vector<Notification> &list) {
		tent_notif_t one;
		int got;
		list.clear();
		while ((got = tent_recv_notif(engine_, 0, &one)) == 1) {
			list.push_back({std::string(one.name, one.name_bytes), std::string(one.message, one.message_bytes)});
			tent_free_notif(&one);
		}
		return Status::of(got);
	}
	bool probePeerAliveByID(SegmentID target) { return tent_probe_peer(engine_, target, 5000) == 1; }

   private:
	Status submit(BatchID batch_id, const std::vector<Request> &requests, tent_submit_options_t &options) {
		std::vector<tent_request_t> list;
		std::vector<tent_request_terms_t> terms;
		list.reserve(requests.size());
		terms.reserve(requests.size());
		for (const Request &r : requests) {
			list.push_back(r.request());
			terms.push_back(r.terms());
		}
		options.terms = terms.data();
		for (const Request &r : requests) {
			if (!r.trace || !*r.trace) continue;
			if (options.trace && std::strcmp(options.trace, r.trace) != 0)
				return Status("the requests of one call bear different traces: submit them apart");
			options.trace = r.trace;
		}
		return Status::of(tent_submit_ex(engine_, batch_id, list.data(), list.size(), &options));
	}
	static TransferStatus converted(const tent_status_t &raw) {
		TransferStatus status;
		status.s = static_cast<TransferStatusEnum>(raw.status);
		status.transferred_bytes = static_cast<size_t>(raw.transferred_bytes);
		return status;
	}
	tent_engine_t engine_ = nullptr;
};

} /* namespace tent */
} /* namespace mooncake */
#endif /* TENT_TYPES_ONLY */
#endif /* __cplusplus */

#endif /* TENT_TRANSFER_ENGINE_H */
