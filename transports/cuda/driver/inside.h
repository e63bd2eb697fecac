/* The parts of the shim that its files share. No other file includes this one. */
#ifndef TENT_CUDA_INSIDE_H
#define TENT_CUDA_INSIDE_H

#include "shim.h"

#define TC_DECLARE(name, arguments) int(*name) arguments;
struct tc_driver { TC_SYMBOLS(TC_DECLARE, TC_DECLARE) };

#define cu tc_loaded
#define forked tc_forked
#define enter tc_enter
#define push tc_push
#define context_of tc_context_of
#define record tc_record_in
#define give_event tc_give_event
#define pop tc_pop
#define zero tc_zero
#define copies_of tc_copies_of
#define gathers tc_gathers
#define gather tc_gather
#define device_count tc_device_count
extern struct tc_driver cu;
extern int device_count;

/* The state of a thread while it works for us. */
typedef struct {
	int mode;
} thread_state;

static inline tc_result ended(int code, const char *call) { return (tc_result){code, call}; }
#define CALL(name, ...) ended(cu.name(__VA_ARGS__), #name)

#define DEVICES_MAX 128

/* Short names of some. */
enum {
	POSIX_FD = TC_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	FABRIC = TC_MEM_HANDLE_TYPE_FABRIC,
	READ_WRITE = TC_MEM_ACCESS_FLAGS_PROT_READWRITE,
	ON_DEVICE = TC_MEM_LOCATION_TYPE_DEVICE
};

/* A driver without one of these functions cannot do it. */
#define NEED(name)                                                                                           \
	if (!cu.name)                                                                                        \
	return ended(TC_NOT_SUPPORTED, #name)

/* Makes one call with a device's context current, and returns its result. */
#define VISIT(device, call)                                                                                  \
	thread_state before;                                                                                 \
	tc_result r = enter(device, &before);                                                                \
	if (r.code)                                                                                          \
		return r;                                                                                    \
	r = call;                                                                                            \
	pop(&before);                                                                                        \
	return r

int forked(void);
tc_result push(tc_context context, thread_state *before);
tc_result context_of(int device, tc_context *context); /* the primary one, retained */
tc_result record(tc_context context, tc_stream stream, tc_event *event); /* by an event that was kept, or a new one */
void give_event(tc_context context, tc_event event);
tc_result enter(int device, thread_state *before);
void pop(thread_state *before);
tc_result copies_of(int device, tc_stream *stream);
int gathers(const tc_copies *c, const uint64_t *to, const uint64_t *from, const uint64_t *bytes); /* by a kernel */
tc_result gather(int device, tc_stream stream, const uint64_t *to, const uint64_t *from, const uint64_t *bytes,
                 size_t count);
tc_result zero(int device, uint64_t address, uint64_t bytes); /* its context is current; the bytes are there when it returns */

#endif
