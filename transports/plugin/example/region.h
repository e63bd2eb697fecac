/* Registered memory, and the epochs below which it is shut: for each peer and for all. */
#ifndef REGION_H
#define REGION_H

#include "list.h"

#include <stdlib.h>
#include <string.h>

typedef struct door { struct door *next; uint8_t id[16]; uint64_t floor; } door; /* of one peer; ~0: closed for good */
typedef struct region {
	struct region *next;
	uint64_t key, address, bytes, floor; /* slices of epochs below floor stay outside */
	uint8_t permission, read_only;
	door *doors;
} region;

static int outside(const region *r, const uint8_t *id, uint64_t epoch) {
	FIND(door, d, r->doors, !memcmp(d->id, id, 16));
	return epoch < r->floor || r->floor == ~0ull || (d && (epoch < d->floor || d->floor == ~0ull));
}

static int inside(const region *r, uint64_t at, uint64_t n) { return at <= r->bytes && n <= r->bytes - at; }

static void forget_region(region *r) {
	for (door *d; (d = r->doors); free(d)) r->doors = d->next;
	free(r);
}

#endif
