#include "last_error.h"

#include <stdatomic.h>
#include <string.h>

enum { TEXT_MOST = 2048 };

static _Thread_local char text_of_thread[TEXT_MOST];

void tent_set_error(const char *text, size_t bytes) {
	if (bytes > TEXT_MOST - 1) bytes = TEXT_MOST - 1;
	if (bytes > 0) memcpy(text_of_thread, text, bytes);
	text_of_thread[bytes] = 0;
}

const char *tent_last_error(void) { return text_of_thread; }

void *tent_handle(uintptr_t number) { return (void *)number; }

uintptr_t tent_thread(void) {
	static atomic_uintptr_t last;
	static _Thread_local uintptr_t mine;
	if (mine == 0) mine = atomic_fetch_add(&last, 1) + 1;
	return mine;
}
