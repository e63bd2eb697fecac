// Package cufile builds an emulated libcufile.so.0 for tests, and reaches into it. It is never part of a build of tent.
//
// The library is C, in the folder src, and works over the emulated driver of tests/fakes/cuda. A test gives both paths
// to a child process, as TENT_LIBCUFILE and TENT_LIBCUDA.
//
// # Rules, each with its source
//
//	files of tmpfs are refused with 5030 (TMPFS=0), one that     libcufile 1.9.1 over an emulated driver
//	  is registered already with 5028
//	memory that is registered already is refused with 5023      the same
//	an I/O reaches the memory that was registered, also when    the library has pinned it
//	  other memory has its addresses: that ends the process
//	memory that is given back under an I/O ends the process     the library says no word about it, and a disk may write
//	                                                            to pages that are somebody else's
//	calls about memory without a current context give 5011      cuFile API reference guide, on contexts
//	one wrong entry fails its whole Submit with 5030: entries   libcufile 1.9.1
//	  in front of it run, and no event of the call comes
//	each event comes once, in any order                         the same
//	a run that meets the end of the file is COMPLETE with a     the same
//	  smaller result
//	Cancel succeeds, and no event comes any more, while bytes   the same
//	  may still move
//	GetStatus without a current context, a call that signals    libcufile 1.14.1 loses events, or ends by an assertion
//	  may interrupt, and a Submit into a batch with entries
//	  under way end the process
//	the 65th entry waits in Submit until an event is taken      the same: it has 64 buffers for runs of up to 1 MiB
//	a WRITE that is not of whole units ends the process         the real one reads, changes and writes a unit, and so
//	                                                            loses bytes of neighbours that write the same unit
//	a handle that is in use, or of a descriptor that is closed, the library would use another file's descriptor
//	  must not be deregistered: that ends the process
//
// Rates are not emulated. Bytes go through memory of the host also where the mode is native.
package cufile
