// Package loaded reaches into an emulated library of a vendor that a test's process has loaded. Beside the vendor's
// functions such a library exports some for tests, all with its own prefix:
//
//	void PREFIX_hold(int on)      holds its work back, or lets it go on
//	void PREFIX_stats(void *into) writes its counters, as int64_t side by side
//
// and others, which the library's package finds and calls.
package loaded
