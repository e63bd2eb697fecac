// Package ascend builds an emulated libascendcl.so and an emulated HIXL for tests, and reaches into them. They are
// never part of a build of tent.
//
// The runtime is C, in the folder src. A test gives its path to a child process as TENT_LIBASCENDCL: it is never loaded
// into a process of ordinary tests.
//
// # Rules, each with its source
//
//	memory of a device is PROT_NONE for the processor           on hardware such a load ends the process
//	it is not zeroed                                            CANN, aclrtMalloc: call aclrtMemset first
//	aclInit a second time gives 100002                          CANN, aclInit
//	the current context is a thread's; calls without one        CANN, context management
//	  give 107002
//	a context of NULL is refused: a thread keeps one            CANN, aclrtSetCurrentContext
//	the kind of a copy has to be that of its memories           CANN, aclrtMemcpy
//	copies between devices fail before somebody enables them    CANN, aclrtDeviceEnablePeerAccess
//	unknown memory has the kind UNREGISTERED, and success       CANN, aclrtPointerGetAttributes
//	CANN 8.1 has neither aclrtMemGetAddressRange nor            its export table
//	  aclrtDeviceGetPCIBusId
//	in a forked child everything fails                          CUDA does so; CANN says nothing
//
// Rates are not emulated. Nothing here has been compared with an NPU.
package ascend
