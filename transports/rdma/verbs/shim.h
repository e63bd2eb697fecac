/* What the Go side calls. Each function is one crossing. None allocates but tv_load and tv_chain_new, and none
 * keeps a pointer. */
#ifndef TENT_VERBS_SHIM_H
#define TENT_VERBS_SHIM_H

#include <sys/types.h>

#include "abi.h"

enum { TV_BATCH = 64 }; /* most work requests and completions of one crossing */

typedef struct tv_library { /* the library's functions */
	struct tv_library *before; /* that was loaded before it */
#define X(result, name, arguments) result(*name) arguments;
	TV_FUNCTIONS(X)
	TV_OPTIONAL(X)
#undef X
} tv_library;

typedef struct { /* a work request with its one range, as verbs.WR */
	struct tv_send_wr wr;
	struct tv_sge range;
} tv_request;

typedef struct { /* a completion, as verbs.WC */
	uint64_t id;
	uint32_t status, vendor, qp, bytes;
} tv_ended;

typedef struct { /* how to connect a queue pair, as verbs.Path */
	uint64_t gid[2];
	uint32_t qp, psn, own_psn, mtu, flow;
	uint16_t lid, pkey;
	uint8_t port, sgid, hops, traffic, sl, bits, rate, global, timeout, retries, rnr_retries, rnr_timer, reads, served;
	uint8_t access;
} tv_path;

tv_library *tv_load(const char *path, char *why, size_t size);
int tv_devices(tv_library *, char *names, size_t size);
struct tv_context *tv_open(tv_library *, const char *name);
int tv_port(tv_library *, struct tv_context *, int port, struct tv_port_attr *);
int tv_gids(tv_library *, struct tv_context *, struct tv_gid_entry *, int most);
int tv_limits(tv_library *, struct tv_context *, struct tv_device_attr *);
struct tv_mr *tv_register(tv_library *, struct tv_pd *, uintptr_t at, size_t bytes, uint64_t first, unsigned access);
struct tv_mr *tv_register_dmabuf(tv_library *, struct tv_pd *, int fd, uint64_t offset, size_t bytes, uint64_t first,
				 unsigned access);
int tv_deregister(tv_library *, struct tv_mr *);
struct tv_channel *tv_channel_new(tv_library *, struct tv_context *);
int tv_channel_end(tv_library *, struct tv_channel *);
struct tv_cq *tv_cq_new(tv_library *, struct tv_context *, int entries, struct tv_channel *);
int tv_cq_end(tv_library *, struct tv_cq *);
int tv_arm(struct tv_cq *);
int tv_poll(struct tv_cq *, tv_ended *, int most);
int tv_drain(tv_library *, struct tv_channel *, int most);
int tv_event(tv_library *, struct tv_context *, uint32_t *type, uint32_t *about);
struct tv_pd *tv_pd_new(tv_library *, struct tv_context *);
int tv_pd_end(tv_library *, struct tv_pd *);
int tv_close(tv_library *, struct tv_context *);
struct tv_qp *tv_qp_new(tv_library *, struct tv_pd *, struct tv_cq *, int requests, int sges, int *inlined);
int tv_qp_end(tv_library *, struct tv_qp *);
int tv_qp_state(tv_library *, struct tv_qp *, int state);
int tv_qp_init(tv_library *, struct tv_qp *, const tv_path *);
int tv_qp_connect(tv_library *, struct tv_qp *, const tv_path *);
int tv_qp_query(tv_library *, struct tv_qp *, struct tv_qp_attr *);
tv_request *tv_chain_new(void);
int tv_post(struct tv_qp *, tv_request *chain, int n, int *posted);

#endif
