// Package loaded reaches into an emulated library of a vendor that a test's process has loaded. Beside the vendor's
// functions such a library exports some for tests, all with its own prefix:
//
//	void PREFIX_hold(int on)                                   holds its work back, or lets it go on
//	void PREFIX_stats(void *into)                              writes its counters, as int64_t side by side
//	void PREFIX_inject(const char *, long nth, int, int stays) makes the nth call of a function from now on fail
//	int  PREFIX_peek(void *, uint64_t at, uint64_t n, int out) copies bytes of any memory, or into it; 0 is success
//	PREFIX_...(up to five integers)                            the others
//
// A library has some of them. To call one that it has not is a mistake of the test, and panics, unless Library.Lacking
// does something else.
package loaded
