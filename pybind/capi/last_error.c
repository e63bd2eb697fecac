#include "last_error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 2048 };

/* The text of a thread is on the heap. Thread-local memory of this library is in the static block, where Go's is, and of
 * that glibc keeps some hundred bytes for libraries that dlopen loads: with 2 KiB here it would refuse this one. */
static pthread_key_t text_key;
static int has_key;

static void make_key(void) { has_key = pthread_key_create(&text_key, free) == 0; }

/* The text of this thread, NULL if it has none and none is made. */
static char *text_of_thread(int make) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, make_key);
	if (!has_key) return NULL;
	char *text = pthread_getspecific(text_key);
	if (text || !make) return text;
	text = malloc(TEXT_MOST);
	if (text && pthread_setspecific(text_key, text) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

void tent_set_error(const char *said, size_t bytes) {
	char *text = text_of_thread(bytes > 0);
	if (!text) return;
	if (bytes > TEXT_MOST - 1) bytes = TEXT_MOST - 1;
	if (bytes > 0) memcpy(text, said, bytes);
	text[bytes] = 0;
}

const char *tent_last_error(void) {
	const char *text = text_of_thread(0);
	return text ? text : "";
}

void *tent_handle(uintptr_t number) { return (void *)number; }

uintptr_t tent_thread(void) {
	static atomic_uintptr_t last;
	static _Thread_local uintptr_t mine;
	if (mine == 0) mine = atomic_fetch_add(&last, 1) + 1;
	return mine;
}
