/* What cgo cannot say in Go: an error text a thread, and handles that are numbers in the clothes of pointers. */
#include <stdint.h>
#include <stddef.h>

__attribute__((visibility("hidden"))) void tent_set_error(const char *text, size_t bytes);
__attribute__((visibility("hidden"))) void *tent_handle(uintptr_t number);
/* A number that no other thread has or had: an address would be that of a later thread too. */
__attribute__((visibility("hidden"))) uintptr_t tent_thread(void);
