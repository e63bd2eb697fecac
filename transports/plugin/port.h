/* The side of tent that plug-ins call, in C: their reports are copied into bounded queues, and Go takes them out. */
#ifndef TP_PORT_H
#define TP_PORT_H

#include "include/tent_device.h"
#include "include/tent_transport.h"

enum { TP_BATCH = 64, TP_REPORTS_MAX = 16384, TP_TEXT_MAX = 255, TP_LINKS_MAX = 1 << 20 };

/* Breaches of the contract that the C side finds itself. */
enum { TP_STRANGER, TP_CROWDED, TP_MALFORMED, TP_BREACHES };

typedef struct tp_port tp_port;

/* The end of a slice. error is a tent_error or 0, the taker's to free: as a number, which cgo need not look into. */
typedef struct {
	uint64_t bytes;
	uintptr_t error;
	uint32_t slot;
} tp_end;

enum { TP_READY, TP_PROGRESS, TP_RAIL_UP, TP_RAIL_DOWN, TP_LINK_DOWN, TP_FENCED, TP_NOTIFIED, TP_DONE, TP_CALL,
       TP_DESCRIBE, TP_LOG };

/* A report of a plug-in; texts and bytes are behind it in the same memory. */
typedef struct tp_report {
	struct tp_report *next;
	int kind;
	int level; /* of TP_LOG, and the limit of TP_CALL in ms */
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
void tp_free(tp_port *);
tent_port *tp_name(tp_port *);
tent_slice *tp_slab(tp_port *);
int tp_eventfd(tp_port *);
const tent_host *tp_host(void);

/* Makes slices live and offers them; list has their addresses. Returns the accepted prefix: the others are not live
 * any more. */
size_t tp_submit(tp_port *, const tent_transport_api *, tent_transport *, const uintptr_t *list, size_t n);
/* Takes ends of slices, at most TP_BATCH. With an api it lets the plug-in work first. */
int tp_poll(tp_port *, const tent_transport_api *, tent_transport *, size_t budget, tp_end *);
/* Hands the work back to the goroutine that sleeps on the eventfd. */
void tp_arm(tp_port *, const tent_transport_api *, tent_transport *);
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

#endif
