/* A wrong argument of C is refused with its cause, takes nothing, and ends no process. Run by `make capi ARGS=--check`,
 * plainly and under the address and undefined-behaviour sanitizers. */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tent/transfer_engine.h"

enum { SIZE = 1 << 16, THREADS = 4, ROUNDS = 2000, LIMIT_MS = 10000 };

static int failures;

/* An error that no other call makes stands before each call, so that the error found afterwards is the call's own. */
static void forget(void) { tent_describe(NULL, "nonsense"); }

static void refused(int line, const char *call, int was, const char *words) {
	const char *said = tent_last_error();
	if (was && strstr(said, words)) return;
	failures++;
	fprintf(stderr, "line %d: %s was %s, tent_last_error() is \"%s\", expected \"%s\" in it\n", line, call,
	        was ? "refused" : "not refused", said, words);
}

/* refused when a call returns -1, NULL or 0, as its kind does, and the error has the words in it */
#define REFUSED(call, words) (forget(), refused(__LINE__, #call, (call) == -1, words))
#define NOTHING(call, words) (forget(), refused(__LINE__, #call, (call) == 0, words))
#define MUST(call) ((call) ? (fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, tent_last_error()), exit(1)) : (void)0)

static tent_request_t good(void *source, uint64_t there) {
	tent_request_t r;
	memset(&r, 0, sizeof r);
	r.opcode = OPCODE_WRITE;
	r.source = source;
	r.target_id = TENT_LOCAL_SEGMENT_ID;
	r.target_offset = there;
	r.length = 64;
	return r;
}

/* Every call with an engine that is not one: NULL, or destroyed. words are a part of the error's text. */
static void without_engine(tent_engine_t none, const char *words) {
	char text[512];
	void *memory = text;
	void *addrs[1] = {text};
	size_t sizes[1] = {sizeof text}, count = 1;
	uint16_t port;
	tent_segment_id_t segment = 0;
	tent_lease_t lease;
	tent_segment_info_t info;
	tent_status_t status;
	tent_notifi_info notes;
	tent_notif_t note;
	tent_request_t request = good(text, 0);
	if (tent_available(none)) failures++, fprintf(stderr, "an engine that is none is available\n");
	REFUSED(tent_segment_name(none, text, sizeof text), words);
	REFUSED(tent_rpc_server_addr_port(none, text, sizeof text, &port), words);
	REFUSED(tent_open_segment(none, &segment, "127.0.0.1:1"), words);
	REFUSED(tent_close_segment(none, 1), words);
	REFUSED(tent_get_segment_info(none, 0, &info), words);
	REFUSED(tent_allocate_memory(none, &memory, 4096, "cpu:0"), words);
	REFUSED(tent_register_memory(none, text, sizeof text), words);
	REFUSED(tent_register_memory_batch(none, addrs, sizes, 1, PERM_GLOBAL_READ_WRITE), words);
	REFUSED(tent_free_memory(none, text), "is not an address of");
	REFUSED(tent_unregister_memory(none, text, 0), "is not an address of");
	REFUSED(tent_remap_memory(none, text, 0, 1), "is not an address of");
	REFUSED(tent_share_memory(none, text, 1, NULL, &lease), "are not inside memory");
	REFUSED(tent_lease_token(none, 1, text, sizeof text), words);
	REFUSED(tent_renew_lease(none, 1, 0), words);
	REFUSED(tent_close_lease(none, 1), words);
	REFUSED(tent_open_lease(none, &segment, 1, "lease1-", NULL), words);
	NOTHING(tent_allocate_batch(none, 1), words);
	REFUSED(tent_free_batch(none, 1), words);
	REFUSED(tent_submit(none, 1, &request, 1), words);
	REFUSED(tent_submit_notif(none, 1, &request, 1, "a", "b"), words);
	REFUSED(tent_submit_ex(none, 1, &request, 1, NULL), words);
	REFUSED(tent_cancel_task(none, 1, 0), words);
	REFUSED(tent_cancel_batch(none, 1), words);
	REFUSED(tent_task_status(none, 1, 0, &status), words);
	REFUSED(tent_task_status_list(none, 1, &status, &count), words);
	REFUSED(tent_overall_status(none, 1, &status), words);
	REFUSED(tent_wait(none, 1, 0, &status), words);
	REFUSED(tent_wait(none, 1, 0, NULL), words);
	REFUSED(tent_batch_failure(none, 1, text, sizeof text), words);
	REFUSED(tent_probe_peer(none, 0, 10), words);
	REFUSED(tent_send_notifs(none, 0, "a", "b"), words);
	REFUSED(tent_send_notif(none, 0, "a", 1, "b", 1), words);
	REFUSED(tent_recv_notifs(none, &notes), words);
	REFUSED(tent_recv_notif(none, 0, &note), words);
	NOTHING(tent_describe(none, "metrics"), words);
	forget();
	tent_destroy_engine(none); /* says why, and does nothing */
	refused(__LINE__, "tent_destroy_engine", 1, words);
}

/* Pointers that are NULL, and giving back things that never were. */
static void without_pointers(tent_engine_t engine, tent_batch_id_t batch) {
	tent_segment_id_t segment;
	static char shared[4096];
	char small[2];
	REFUSED(tent_segment_name(engine, NULL, 100), "too short");
	REFUSED(tent_segment_name(engine, small, sizeof small), "too short");
	REFUSED(tent_open_segment(engine, NULL, "127.0.0.1:1"), "handle is NULL");
	REFUSED(tent_open_segment(engine, &segment, NULL), "segment_name is NULL");
	REFUSED(tent_open_segment(engine, &segment, "no such thing"), "no such thing");
	REFUSED(tent_open_lease(engine, NULL, 0, "lease1-", NULL), "handle is NULL");
	REFUSED(tent_open_lease(engine, &segment, 0, NULL, NULL), "no token");
	REFUSED(tent_share_memory(engine, small, 1, NULL, NULL), "lease is NULL");
	tent_lease_t lease;
	REFUSED(tent_share_ranges(engine, NULL, 1, NULL, &lease), "1 to 1048576 ranges");
	int permissions[] = {-254, -1, 3, 256, 257};
	MUST(tent_register_memory(engine, shared, sizeof shared));
	for (size_t i = 0; i < sizeof permissions / sizeof *permissions; i++) {
		tent_lease_options_t options = {.permission = permissions[i]};
		REFUSED(tent_share_memory(engine, shared, 1, &options, &lease), "is not 0, 1 or 2");
	}
	MUST(tent_unregister_memory(engine, shared, 0));
	REFUSED(tent_get_segment_info(engine, 0, NULL), "info is NULL");
	REFUSED(tent_allocate_memory(engine, NULL, 4096, NULL), "addr is NULL");
	REFUSED(tent_register_memory(engine, NULL, 4096), "address is 0");
	REFUSED(tent_register_memory_batch(engine, NULL, NULL, 1, 0), "1 ranges");
	REFUSED(tent_unregister_memory_batch(engine, NULL, NULL, 1), "1 ranges");
	REFUSED(tent_submit(engine, batch, NULL, 1), "at least one");
	REFUSED(tent_task_status(engine, batch, 0, NULL), "status");
	REFUSED(tent_task_status_list(engine, batch, NULL, NULL), "count");
	REFUSED(tent_overall_status(engine, batch, NULL), "status is NULL");
	REFUSED(tent_batch_failure(engine, batch, NULL, 0), "too short");
	REFUSED(tent_send_notif(engine, 0, NULL, 1, "b", 1), "is NULL, and has bytes");
	REFUSED(tent_send_notif(engine, 0, "a", 1, NULL, 1), "is NULL, and has bytes");
	REFUSED(tent_send_notif(engine, 0, "a", 1, "b", (size_t)-1), "at most");
	tent_request_t request = good(small, 0);
	tent_submit_options_t options = {.notify = 1, .name = "a", .message_bytes = 1};
	REFUSED(tent_submit_ex(engine, batch, &request, 1, &options), "is NULL, and has bytes");
	REFUSED(tent_recv_notifs(engine, NULL), "info is NULL");
	REFUSED(tent_recv_notif(engine, 0, NULL), "notif is NULL");
	/* a list with a range that is not registered leaves the others as they are */
	static char two[2];
	void *both[] = {&two[0], &two[1]};
	size_t sizes[] = {1, 1};
	MUST(tent_register_memory(engine, both[0], 1));
	MUST(tent_register_memory(engine, both[0], 1)); /* changes nothing */
	REFUSED(tent_register_memory_with_perm(engine, both[0], 1, PERM_LOCAL_READ_WRITE), "registered already");
	REFUSED(tent_register_growable_memory(engine, both[0], 1, NULL), "registered already");
	REFUSED(tent_unregister_memory_batch(engine, both, sizes, 2), "not an address of tent_register_memory");
	both[1] = both[0];
	REFUSED(tent_unregister_memory_batch(engine, both, sizes, 2), "not an address of tent_register_memory");
	MUST(tent_unregister_memory_batch(engine, both, NULL, 1));
	NOTHING(tent_describe(engine, NULL), "is not");
	tent_free_segment_info(NULL);
	tent_free_notifs(NULL);
	tent_free_notif(NULL);
	tent_free_text(NULL);
}

static void wrong_counts(tent_engine_t engine, tent_batch_id_t batch, unsigned char *memory) {
	tent_request_t request = good(memory, (uintptr_t)memory + 4096);
	tent_status_t status;
	void *addrs[1] = {memory};
	size_t sizes[1] = {64};
	void *made;
	NOTHING(tent_allocate_batch(engine, 0), "capacity");
	NOTHING(tent_allocate_batch(engine, SIZE_MAX), "capacity");
	REFUSED(tent_submit(engine, batch, &request, 0), "at least one");
	REFUSED(tent_submit(engine, batch, &request, 5), "do not fit");
	REFUSED(tent_submit(engine, batch, &request, SIZE_MAX), "do not fit");
	REFUSED(tent_submit(engine, batch, &request, (size_t)1 << 58), "do not fit"); /* times the size of a request: 2^64 */
	REFUSED(tent_register_memory_batch(engine, addrs, sizes, SIZE_MAX, 0), "ranges");
	REFUSED(tent_register_memory_batch(engine, addrs, sizes, 0, 0), "ranges");
	REFUSED(tent_unregister_memory_batch(engine, addrs, sizes, SIZE_MAX), "ranges");
	REFUSED(tent_task_status(engine, batch, 0, &status), "task 0");
	REFUSED(tent_task_status(engine, batch, SIZE_MAX, &status), "task");
	REFUSED(tent_cancel_task(engine, batch, SIZE_MAX), "task");
	REFUSED(tent_allocate_memory(engine, &made, 0, NULL), "0");
	REFUSED(tent_allocate_memory(engine, &made, SIZE_MAX, NULL), "");
	REFUSED(tent_register_memory(engine, memory, 0), "");
	REFUSED(tent_register_memory(engine, (void *)(UINTPTR_MAX - 10), 100), "");
	REFUSED(tent_register_memory_with_perm(engine, &status, sizeof status, 77), "permission");
}

/* One field wrong at a time; the good request in front of it is not taken either. */
static void wrong_requests(tent_engine_t engine, tent_batch_id_t batch, unsigned char *memory) {
	static char stranger[64];
	tent_request_t list[2];
	size_t count = 0;
#define WRONG(change, words)                                       \
	do {                                                           \
		list[0] = list[1] = good(memory, (uintptr_t)memory + 4096); \
		tent_request_t *r = &list[1];                              \
		change;                                                    \
		REFUSED(tent_submit(engine, batch, list, 2), words);       \
	} while (0)
	WRONG(r->opcode = 2, "opcode");
	WRONG(r->opcode = -1, "opcode");
	WRONG(r->priority = 3, "priority");
	WRONG(r->priority = -1, "priority");
	WRONG(r->priority = 256, "priority");
	WRONG(r->transport_hint = 300, "transport_hint");
	WRONG(r->transport_hint = -1, "transport_hint");
	WRONG(r->source = NULL, "registered");
	WRONG(r->source = stranger, "registered");
	WRONG(r->source = memory + SIZE - 10, "");
	WRONG(r->target_id = 77, "77");
	WRONG(r->target_id = UINT64_MAX, "");
	WRONG(r->target_offset = 1, "");
	WRONG(r->target_offset = UINT64_MAX - 5, "");
	const char *cure = "leave empty requests out";
	WRONG(r->length = 0, cure);
	const char *said = strstr(tent_last_error(), cure);
	if (said && strstr(said + 1, cure)) failures++, fprintf(stderr, "the cure stands there twice: %s\n", tent_last_error());
	WRONG(r->length = SIZE + 1, "");
	WRONG(r->length = UINT64_MAX, "");
	WRONG(r->length = UINT64_MAX - (uintptr_t)memory + 64, ""); /* wraps to an end inside */
	if (tent_task_status_list(engine, batch, NULL, &count) || count) failures++, fprintf(stderr, "%zu requests were taken\n", count);
}

/* A batch that was freed, one that never was, one of another engine. */
static void wrong_batches(tent_engine_t engine, tent_engine_t other, unsigned char *memory) {
	tent_request_t request = good(memory, (uintptr_t)memory + 4096);
	tent_status_t status;
	tent_batch_id_t freed = tent_allocate_batch(engine, 1), held = tent_allocate_batch(engine, 1);
	MUST(!freed || !held || tent_free_batch(engine, freed));
	tent_batch_id_t wrong[] = {freed, 0, 12345, UINT64_MAX, (uint64_t)1 << 63};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		REFUSED(tent_submit(engine, wrong[i], &request, 1), "does not exist or was freed");
		REFUSED(tent_free_batch(engine, wrong[i]), "does not exist or was freed");
		REFUSED(tent_cancel_task(engine, wrong[i], 0), "does not exist or was freed");
		REFUSED(tent_cancel_batch(engine, wrong[i]), "does not exist or was freed");
		REFUSED(tent_task_status(engine, wrong[i], 0, &status), "does not exist or was freed");
		REFUSED(tent_overall_status(engine, wrong[i], &status), "does not exist or was freed");
		REFUSED(tent_wait(engine, wrong[i], 0, &status), "does not exist or was freed");
		REFUSED(tent_wait(engine, wrong[i], 0, NULL), "does not exist or was freed");
	}
	REFUSED(tent_submit(other, held, &request, 1), "does not exist or was freed");
	REFUSED(tent_free_batch(other, held), "does not exist or was freed");
	MUST(tent_free_batch(engine, held));
}

/* A batch that was freed while it runs is found by nobody: its count of requests would be that of no array. */
static void freed_while_it_runs(unsigned char *memory) {
	tent_set_config("allow_faults", "true");
	tent_set_config("faults", "op=WRITE blackhole");
	tent_engine_t engine = tent_create_engine();
	MUST(!engine || tent_register_memory(engine, memory, SIZE));
	tent_request_t request = good(memory, (uintptr_t)memory + 4096);
	tent_batch_id_t batch = tent_allocate_batch(engine, 1);
	MUST(!batch || tent_submit(engine, batch, &request, 1) || tent_free_batch(engine, batch));
	size_t wrong[] = {1, 1000000, (size_t)1 << 58, SIZE_MAX};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		REFUSED(tent_submit(engine, batch, &request, wrong[i]), "does not exist or was freed");
	tent_destroy_engine(engine);
}

/* Each thread has its own error, while both also make calls that succeed. */
struct worker {
	pthread_t thread;
	tent_engine_t engine;
	unsigned char *memory;
	int number, failures;
};

static void *work(void *argument) {
	struct worker *w = argument;
	char mine[64];
	unsigned char *from = w->memory + w->number * 1024, *to = from + 512;
	tent_request_t request = good(from, (uintptr_t)to);
	if (tent_last_error()[0]) w->failures++; /* of another thread */
	snprintf(mine, sizeof mine, "task %d of a batch with 1", 1000 + w->number);
	for (int i = 0; i < ROUNDS && !w->failures; i++) {
		tent_status_t status;
		memset(from, i + w->number, 64);
		tent_batch_id_t batch = tent_allocate_batch(w->engine, 1);
		w->failures += !batch || tent_submit(w->engine, batch, &request, 1) || tent_wait(w->engine, batch, LIMIT_MS, &status) ||
		               status.status != STATUS_COMPLETED || memcmp(from, to, 64) != 0;
		w->failures += tent_task_status(w->engine, batch, 1000 + w->number, &status) != -1 || !strstr(tent_last_error(), mine);
		w->failures += tent_free_batch(w->engine, batch) || !strstr(tent_last_error(), mine);
	}
	return NULL;
}

static void threads(tent_engine_t engine, unsigned char *memory) {
	struct worker workers[THREADS];
	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){.engine = engine, .memory = memory, .number = i};
		MUST(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		if (workers[i].failures) failures++, fprintf(stderr, "thread %d was told \"%s\" or moved wrong bytes\n", i, tent_last_error());
	}
}

/* An engine with one setting and a key file, or NULL. */
static tent_engine_t member(const char *key_file, const char *key, const char *value) {
	tent_set_config("security/cluster_key", key_file);
	if (key) tent_set_config(key, value);
	return tent_create_engine();
}

static void write_key(const char *path, int letter) {
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	char key[32];
	memset(key, letter, sizeof key);
	MUST(fd < 0 || write(fd, key, sizeof key) != sizeof key || close(fd));
}

/* Whom an engine admits: the holders of its key, and nothing beyond loopback without one. */
static void admission(void) {
	char ours[] = "/tmp/tent-key-XXXXXX", theirs[] = "/tmp/tent-key-XXXXXX", address[256];
	tent_segment_id_t segment;
	MUST(close(mkstemp(ours)) || close(mkstemp(theirs)));
	write_key(ours, 'a');
	write_key(theirs, 'b');
	tent_set_config("rpc_server_hostname", "0.0.0.0");
	NOTHING(tent_create_engine(), "cluster_key");
	tent_set_config("security/cert", "me.pem");
	NOTHING(tent_create_engine(), "security/allow is empty");
	tent_set_config("security/data", "seal");
	NOTHING(tent_create_engine(), "one of auth, sign, encrypt");
	NOTHING(member("/no/such/file", NULL, NULL), "no such file");
	NOTHING(member(ours, "insecure", "true"), "exclude each other");
	tent_engine_t a = member(ours, "security/data", "encrypt"), b = member(ours, NULL, NULL), c = member(theirs, NULL, NULL);
	MUST(!a || !b || !c || tent_segment_name(b, address, sizeof address));
	MUST(tent_open_segment(a, &segment, address));
	REFUSED(tent_open_segment(c, &segment, address), "does not hold the key file");
	static char shared[4096];
	REFUSED(tent_register_memory_for(b, shared, sizeof shared, NULL, "prefill"), "no pattern");
	REFUSED(tent_register_memory_for(b, shared, sizeof shared, NULL, "uid:1 id:12*"), "an attacker finds");
	REFUSED(tent_open_segment_of(a, &segment, address, "id:0x12"), "hexadecimal digits");
	MUST(tent_register_memory_for(b, shared, sizeof shared, NULL, "uid:1 *"));
	MUST(tent_register_memory_for(b, shared, sizeof shared, NULL, "uid:1 *")); /* changes nothing */
	REFUSED(tent_register_memory_for(b, shared, sizeof shared, NULL, "uid:2"), "registered already");
	REFUSED(tent_register_memory(b, shared, sizeof shared), "registered already");
	REFUSED(tent_open_segment_of(a, &segment, address, "dns:b uid:1 id:00000000000000000000000000000000"), "wanted was");
	MUST(tent_open_segment_of(a, &segment, address, "dns:b *"));
	MUST(tent_reload_security(a));
	REFUSED(tent_disconnect(b, "dns:nobody"), "no peer is");
	MUST(tent_disconnect(b, "*") != 1);
	REFUSED(tent_open_segment(a, &segment, address), "does not admit");
	tent_destroy_engine(a);
	tent_destroy_engine(b);
	tent_destroy_engine(c);
	MUST(unlink(ours) || unlink(theirs));
}

/* A key that is there twice: the last one would win, with all that the first one has set. */
static void given_twice(void) {
	char path[] = "/tmp/tent-settings-XXXXXX";
	const char text[] = "{\"log_level\": \"error\",\n\"log_level\": \"off\"}";
	int fd = mkstemp(path);
	MUST(fd < 0 || write(fd, text, sizeof text - 1) != sizeof text - 1 || close(fd));
	tent_load_config_from_file(path);
	NOTHING(tent_create_engine(), "line 2: log_level is given twice");
	MUST(unlink(path));
	tent_set_config("security", "{\"data\": \"sign\", \"data\": \"auth\"}");
	NOTHING(tent_create_engine(), "data is given twice in one object");
}

int main(void) {
	admission();
	given_twice();
	tent_set_config("no_such_key", "1");
	NOTHING(tent_create_engine(), "no_such_key");
	tent_load_config_from_file("/no/such/file.json");
	NOTHING(tent_create_engine(), "/no/such/file.json");
	tent_load_config_from_file(NULL);
	NOTHING(tent_create_engine(), "");
	without_engine(NULL, "engine");

	tent_engine_t engine = tent_create_engine(), other = tent_create_engine();
	void *memory;
	MUST(!engine || !other || tent_allocate_memory(engine, &memory, SIZE, "cpu:0"));
	tent_batch_id_t batch = tent_allocate_batch(engine, 4);
	MUST(!batch);
	without_pointers(engine, batch);
	wrong_counts(engine, batch, memory);
	wrong_requests(engine, batch, memory);
	wrong_batches(engine, other, memory);
	freed_while_it_runs(memory);
	threads(engine, memory);

	/* and after all that the right thing works, with the last byte of the memory */
	tent_request_t request = good((unsigned char *)memory + SIZE - 64, (uintptr_t)memory);
	tent_status_t status;
	memset(request.source, 0x5a, 64);
	MUST(tent_submit(engine, batch, &request, 1) || tent_wait(engine, batch, LIMIT_MS, &status));
	if (status.status != STATUS_COMPLETED || memcmp(memory, request.source, 64)) failures++;
	size_t room[] = {0, 1, (size_t)1 << 63, SIZE_MAX}; /* for statuses, of which there is one */
	for (size_t i = 0; i < sizeof room / sizeof *room; i++) {
		size_t count = room[i];
		MUST(tent_task_status_list(engine, batch, &status, &count));
		if (count != 1) failures++, fprintf(stderr, "with room for %zu there were %zu statuses\n", room[i], count);
	}

	tent_destroy_engine(engine);
	without_engine(engine, "engine");
	if (!tent_available(other)) failures++, fprintf(stderr, "the other engine has ended too\n");
	tent_destroy_engine(other);
	if (failures) return fprintf(stderr, "%d times wrong\n", failures), 1;
	printf("everything wrong is refused with its cause\n");
	return 0;
}
