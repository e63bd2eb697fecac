/* The parts of the shim that its files share. No other file includes this one. */
#ifndef TENT_CUDA_INSIDE_H
#define TENT_CUDA_INSIDE_H

#include "shim.h"

#define TC_DECLARE(name, arguments) int(*name) arguments;
struct tc_driver { TC_SYMBOLS(TC_DECLARE, TC_DECLARE) };

#define cu tc_loaded
#define forked tc_forked
#define enter tc_enter
#define pop tc_pop
extern struct tc_driver cu;

/* The state of a thread while it works for us. */
typedef struct {
	int mode;
} thread_state;

static inline tc_result ended(int code, const char *call) { return (tc_result){code, call}; }
#define CALL(name, ...) ended(cu.name(__VA_ARGS__), #name)

int forked(void);
tc_result enter(int device, thread_state *before);
void pop(thread_state *before);

#endif
