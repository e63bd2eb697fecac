/* The side of tent that plug-ins call, in C: their reports are copied into bounded queues, and Go takes them out. */
#ifndef TP_PORT_H
#define TP_PORT_H

#include "include/tent_device.h"
#include "include/tent_transport.h"

enum { TP_BATCH = 64, TP_TRAYS = 8, TP_REPORTS_MAX = 16384, TP_TEXT_MAX = 255, TP_LINKS_MAX = 1 << 20 };

/* Sizes of version 1.0 of the structs that have grown since: a shorter one was not made by the header. */
enum { TP_API_LEAST = offsetof(tent_transport_api, carry), TP_PEER_LEAST = offsetof(tent_peer, identity) };

/* Breaches of the contract that the C side finds itself. */
enum { TP_STRANGER, TP_CROWDED, TP_MALFORMED, TP_BREACHES };

typedef struct tp_port tp_port;

/* The end of a slice. error is a tent_error or 0, the taker's to free: as a number, which cgo need not look into. */
typedef struct {
	uint64_t bytes;
	uintptr_t error;
	uint32_t slot;
} tp_end;

/* The ends of slices that wait. Threads of the plug-in put them in under the port's lock. One goroutine at a time takes
 * them out, without a lock and without a call of C. Both counts grow for ever. */
typedef struct {
	tp_end *list; /* end n is list[n modulo slots], and slots is a power of two */
	uint32_t put; /* stored behind the end */
	char apart[64];
	uint32_t taken;  /* stored behind the copy of the end, and before its slot is free */
	uint32_t polling; /* a waiter looks: complete wakes nobody until tp_arm */
} tp_ends;

enum { TP_READY, TP_PROGRESS, TP_RAIL_UP, TP_RAIL_DOWN, TP_LINK_DOWN, TP_FENCED, TP_NOTIFIED, TP_DONE, TP_CALL,
       TP_DESCRIBE, TP_LOG, TP_REFUSED };

/* A report of a plug-in; texts and bytes are behind it in the same memory. */
typedef struct tp_report {
	struct tp_report *next;
	int kind;
	int level; /* of TP_LOG, the limit of TP_CALL in ms, the reason of TP_REFUSED */
	int failed; /* error is set */
	tent_rail rail; /* and the link of those without a rail */
	uint64_t key, value; /* remote key and epoch; token and rtt */
	tent_error error;
	tent_rail_info info;
	uint8_t id[16];
	const char *text[3];
	const void *bytes;
	size_t n;
} tp_report;

tp_port *tp_new(uint32_t slots, char *why, size_t size);
/* Shuts the door: a report that comes from now on finds nobody. What the plug-in may still read stays, for ever. */
void tp_shut(tp_port *);
void tp_free(tp_port *);
tent_port *tp_name(tp_port *);
/* The slab: a slice for each slot, and behind them TP_TRAYS trays of TP_BATCH slices for tp_carry. */
tent_slice *tp_slab(tp_port *);
/* By slot, the one behind it in its batch; for the caller of tp_submit, who owns the slots. */
uint32_t *tp_chain(tp_port *);
tp_ends *tp_ends_of(tp_port *);
int tp_eventfd(tp_port *);
const tent_host *tp_host(void);

/* Names the transport that open gave. The calls of the hot path, below, find it here: cgo looks into pointers that it
 * passes. */
void tp_bind(tp_port *, const tent_transport_api *, tent_transport *);
/* Makes the slices of n slots live and offers them: the first, and those that follow it in the chain. Returns the
 * accepted prefix: the others are not live any more. */
size_t tp_submit(tp_port *, uint32_t first, size_t n);
/* Lets the plug-in carry out the first n slices of a tray. */
int tp_carry(tp_port *, uint32_t tray, size_t n);
/* Lets the plug-in work on this thread. Its table has poll. */
void tp_poll(tp_port *, size_t budget);
/* Hands the work back to the goroutine that sleeps on the eventfd. */
void tp_arm(tp_port *);
/* Takes the oldest report, NULL for none. The taker frees it. */
tp_report *tp_next(tp_port *);
/* Reports whether nothing waits, and then asks for a wake-up by the eventfd. */
int tp_sleep(tp_port *);
void tp_wake(tp_port *);
/* The newest epoch of a link's peer that fenced has named, 0 for none; and a word that is not 0 once there is one. */
uint64_t tp_epoch(tp_port *, uint64_t link);
const uint64_t *tp_fences(tp_port *);
/* Counts of breaches since the last call. */
void tp_breaches(tp_port *, uint64_t counts[TP_BREACHES]);

/* Opens a library once its file was checked. NULL: why says the reason. */
void *tp_dlopen(const char *path, char *why, size_t size);
/* Asks a library for its table: 1 when it gives one, 0 when it brings no transport, -1 with the reason in why. */
int tp_table(void *library, const tent_transport_api **, char *why, size_t size);

/* Copies a table of any size to one of ours, which stays as libraries do. One thread calls it at a time. */
tent_transport_api *tp_kept(const tent_transport_api *theirs);

/* Registers the devices of a library: 1, 0 when it brings none, -1 with the reason in why. */
int td_register(void *library, device_plugin_t *, void **plugin, char *why, size_t size);
int td_count(const device_plugin_t *, void *plugin);
int td_bus(const device_plugin_t *, void *plugin, int device, char *text, size_t size);
int td_allocate(const device_plugin_t *, void *plugin, uintptr_t *address, size_t n, const char *location);
int td_free(const device_plugin_t *, void *plugin, uintptr_t address, size_t n);
int td_copy(const device_plugin_t *, void *plugin, uintptr_t to, uintptr_t from, size_t n);
int td_locate(const device_plugin_t *, void *plugin, uintptr_t address, size_t n, location_t *parts);

/* Calls of functions that C alone can call by address. */
int tp_check(const tent_transport_api *, char *why, size_t size);
int tp_open(const tent_transport_api *, tp_port *, const tent_peer *, const char *const *values, tent_transport **,
            tent_error *);
void tp_info(const tent_transport_api *, tent_transport *, tent_info *);
int tp_register(const tent_transport_api *, tent_transport *, const tent_region *, uint64_t limit, uint64_t *key,
                void *descriptor, size_t *n, tent_error *);
int tp_revoke(const tent_transport_api *, tent_transport *, uint64_t key, const tent_peer *, uint64_t epoch,
              uint64_t limit, tent_error *);
int tp_deregister(const tent_transport_api *, tent_transport *, uint64_t key, uint64_t limit, tent_error *);
int tp_attach(const tent_transport_api *, tent_transport *, uint64_t link, const tent_peer *, tent_error *);
int tp_import(const tent_transport_api *, tent_transport *, uint64_t link, const void *, size_t n, uint64_t *key,
              tent_error *);
void tp_forget(const tent_transport_api *, tent_transport *, uint64_t link, uint64_t key);
void tp_detach(const tent_transport_api *, tent_transport *, uint64_t link);
void tp_withdraw(const tent_transport_api *, tent_transport *, const uint64_t *cookies, size_t n);
void tp_fence(const tent_transport_api *, tent_transport *, tent_rail);
void tp_probe(const tent_transport_api *, tent_transport *, tent_rail, uint64_t token);
int tp_close(const tent_transport_api *, tent_transport *, uint64_t limit, tent_error *);
int tp_serve(const tent_transport_api *, tent_transport *, const tent_peer *, const void *, size_t n, void *answer,
             size_t *answer_n, tent_error *);
void tp_called(const tent_transport_api *, tent_transport *, uint64_t token, const void *, size_t n,
               const tent_error *);
int tp_notify(const tent_transport_api *, tent_transport *, uint64_t link, const void *, size_t n, uint64_t token);
void tp_noted(const tent_transport_api *, tent_transport *, uint64_t token, int taken);
int tp_heard(const tent_transport_api *, tent_transport *, tent_rail, tent_signs *);
size_t tp_explain(const tent_transport_api *, tent_transport *, uint64_t link, char *, size_t size);
int tp_open_file(const tent_transport_api *, tent_transport *, const tent_file_spec *, tent_file *, tent_error *);
int tp_import_file(const tent_transport_api *, tent_transport *, uint64_t link, const tent_file *, uint64_t *key,
                   tent_error *);
void tp_sync(const tent_transport_api *, tent_transport *, uint64_t link, uint64_t key, uint64_t token);
int tp_allocate(const tent_transport_api *, tent_transport *, tent_memory *, tent_error *);
int tp_release(const tent_transport_api *, tent_transport *, uint64_t address, uint64_t bytes, tent_error *);
int tp_remap(const tent_transport_api *, tent_transport *, uint64_t key, uint64_t offset, uint64_t bytes,
             uint64_t limit, tent_error *);
int tp_match(const tent_transport_api *, tent_transport *, uint64_t link, uint64_t local, uint64_t remote,
             tent_match *, tent_error *);
void tp_disconnect(const tent_transport_api *, tent_transport *, const tent_peer *);
int tp_reach(const tent_transport_api *, tent_transport *, const tent_peer *, const char *const *addresses, size_t n,
             char *why, size_t size);
uint64_t tp_flushes(const tent_transport_api *, tent_transport *);
size_t tp_survey(const tent_transport_api *, char *text, size_t size);

#endif
