/* The parts of the shim that its files share. No other file includes this one. */
#ifndef TENT_ACL_INSIDE_H
#define TENT_ACL_INSIDE_H

#include "shim.h"

/* A piece of work for which a device's context is current. */
typedef struct {
	int device;
	uint64_t to, from, bytes;
	uint64_t *address;
	ta_place *place;
} ta_work;

/* Runs a piece of work on one of our threads, which may keep its context. */
ta_result ta_elsewhere(ta_result (*run)(ta_work *), ta_work *w);

#endif
