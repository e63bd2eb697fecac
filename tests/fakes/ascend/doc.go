// Package ascend builds an emulated libascendcl.so and an emulated HIXL for tests, and reaches into them. They are
// never part of a build of tent.
//
// The runtime is C, in the folder src. HIXL is C++, in the folder hixl: the classes of the shim's declarations,
// compiled with the other string ABI of libstdc++. A test gives their paths to a child process, as TENT_LIBASCENDCL,
// TENT_LIBHIXL and others: they are never loaded into a process of ordinary tests.
//
// # Rules of the runtime, each with its source
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
// # Rules of HIXL, each with its source
//
//	a link sees the registrations of before                     HIXL's documents, RegisterMem, Connect
//	DeregisterMem fails while a link is there, at either end    its source, HixlEngine::DeregisterMem
//	the same range again gives the same handle                  its source, HixlServer::RegisterMem
//	ranges do not overlap                                       the same
//	memory of the host comes from aclrtMallocHost, that of a    HIXL's documents, RegisterMem
//	  device is of the engine's
//	links are known by their peer; a second Connect gives       its source, ClientManager
//	  ALREADY_CONNECTED, one to itself PARAM_INVALID
//	512 links                                                   HIXL's documents, Connect
//	calls come from threads with the context of Initialize      HIXL's documents, on each call
//	a state that ends a request frees it: a later question      HIXL's documents, GetTransferStatus
//	  gives PARAM_INVALID
//	Disconnect forgets requests, and nothing of them moves:     HIXL's documents, Disconnect
//	  the NPU of the client carries them out
//	Finalize ends all links, also those of peers                HIXL's documents, Finalize
//
// Calls against these rules are counted, and fail a test at its end (Linked.Check).
//
// Rates are not emulated. Nothing here has been compared with an NPU.
package ascend
