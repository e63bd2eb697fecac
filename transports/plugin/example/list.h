/* Lists of slices, linked by the first word of their scratch, and a search in others. */
#ifndef LIST_H
#define LIST_H

#include "tent_transport.h"

typedef struct { tent_slice *first, *last; } list;

#define FIND(type, name, first, condition) \
	type *name = first; \
	while (name && !(condition)) name = name->next
#define NEXT(s) ((tent_slice *)(uintptr_t)(s)->scratch[0])

static void push(list *l, tent_slice *s) { /* at the end */
	s->scratch[0] = 0;
	if (l->first) l->last->scratch[0] = (uintptr_t)s;
	else l->first = s;
	l->last = s;
}

static int leave(list *l, tent_slice *s) {
	tent_slice *before = NULL, *at = l->first;
	for (; at && at != s; at = NEXT(at)) before = at;
	if (!at) return 0;
	if (before) before->scratch[0] = s->scratch[0];
	else l->first = NEXT(s);
	if (l->last == s) l->last = before;
	return 1;
}

#endif
