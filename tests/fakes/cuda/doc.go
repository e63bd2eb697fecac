// Package cuda builds an emulated libcuda.so.1 for tests, and reaches into it. It is never part of a build of tent.
//
// The library is C, in the folder src. A test gives its path to a child process as TENT_LIBCUDA: it is never loaded
// into a process of ordinary tests. Settings come by environment variables, see Settings.
//
// # Rules, each with its source
//
//	memory of a device is PROT_NONE for the processor           on hardware such a load ends the process
//	freed addresses stay the driver's, and come again           unified addresses: one reservation a process
//	it is not zeroed, that of the VMM neither                   CUDA driver API, cuMemAlloc: "the memory is not cleared"
//	unknown symbols are absent: dlsym gives NULL                export table of the driver 550.163.01
//	cuMemcpyBatchAsync from 12.8 (9 arguments), _v2 from 13.0   the headers of both
//	  (8 arguments); copies of a batch have no order
//	cuDriverGetVersion works before cuInit, all else gives 3,   driver 550.163.01 on a machine without a GPU
//	  cuInit gives 100 without a device
//	in a forked child all gives 3                               CUDA programming guide, on fork
//	the current context is a thread's, a stack                  CUDA driver API, context management
//	calls without a current context give 201                    the same
//	the attributes of unknown memory are zeros, and success;    CUDA driver API, cuPointerGetAttributes
//	  the singular call fails
//	attributes 8 and 10 are written as int                      NVIDIA/DALI, request 3873; cudawrappers, request 250
//	managed memory is a device's, and has no legacy handle      CUDA driver API, cuMemAllocManaged
//	memory of cuMemAllocAsync has none, and no context          JuliaGPU/CUDA.jl, issue 1053; UCX, request 8623
//	cuMemGetAddressRange of the VMM is one mapping              NCCL and UCX walk buffers so
//	a copy from memory that is not pinned returns when it is    CUDA driver API, synchronization behavior
//	  done, every other one at once
//	registered pages of the host are reached until they are     the same, cuMemHostRegister: it locks the pages
//	  given back, also when others are mapped in their place
//	a copy lies in one registration of the host, or in none;    the same, cuMemcpyAsync: "entirely registered with CUDA,
//	  else 1                                                      or [..] not registered at all"; SGLang, request 36798
//	attributes 11 and 12 of pinned memory are its registration  TensorRT-LLM asks for them so
//	a sticky error comes back from every call on its context    CUDA driver API, cudaError_enum, codes 700 and others
//	an event of another device's context is 400                 the same, cuEventRecord
//	a legacy handle opened for a device without a way 217, and  CUDA driver API, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
//	  so is access between contexts; enabled twice it is 704
//	copies between devices of one process need no access        CUDA programming guide, peer-to-peer memory copy
//	legacy handles: own process 201, flags other than 1, and    CUDA driver API, cuIpcOpenMemHandle; UCX's tests
//	  memory of the VMM 1, freed memory 400, same handle and
//	  context same address, counted
//	a legacy handle of memory where older memory of its owner   UCX, cuda_ipc_cache.c; mscclpp, issue 165
//	  is still open: 208
//	VMM: a descriptor is a real one, comes as a value to        CUDA driver API, cuMemImportFromShareableHandle
//	  import, and stays its owner's
//	a dma-buf is of memory of cuMemAlloc or of the VMM, and     CUDA driver API, cuMemGetHandleForAddressRange
//	  begins with its range; as a file cannot, its position
//	  says where
//	bytes of NICs: 118 says which devices see them, 117 whether  the same, cuFlushGPUDirectRDMAWrites; it is counted
//	  a call of the current context flushes them
//	access is each device's, and is checked at a copy           the same, cuMemSetAccess
//	fabric handles need an IMEX channel, else 800; attribute    NCCL, vLLM issue 33540
//	  128 is 1 all the same; peers need the same channel
//	a device without them: attribute 128 is 0, and 801          CUDA driver API, CUDA_ERROR_NOT_SUPPORTED
//	a handle of memory that is gone everywhere opens nothing,   the same, cuMemRelease
//	  and its pages stay as long as a process maps them
//	cuMemMap has an offset of 0 alone, and cuMemAddressReserve  the same, both
//	  an alignment that is a power of two
//	cuMemHostRegister of pages that are not there, or that the  the same: "CU_MEMHOSTREGISTER_READ_ONLY [..] is required
//	  program cannot write (without READ_ONLY): 1                 in order to register memory mapped to the CPU as
//	                                                              read-only"
//	copies of one address space may cross mappings              unified addresses
//	a green context is current in one thread at a time; a       cuda.h of CUDA 13, CUgreenCtx, cuStreamGetCtx_v2,
//	  stream of it is of it, and by cuStreamGetCtx_v2 (12.5)      cuGreenCtxRecordEvent
//	  of the primary one, of which its events are
//	a stream without NON_BLOCKING works behind the default one  CUDA driver API, stream synchronization behavior
//	cuStreamWaitValue32 waits for pinned memory, compares with  CUDA driver API, stream memory operations
//	  a wrap, and nobody wakes it: the front end polls
//	its flag FLUSH needs attribute 98                           the same
//	cudaDeviceReset: the context has its handle still, and      lupinemachines/lupine, issue 844; CUDA driver API,
//	  each call there gives 709 until it is retained again        cuDevicePrimaryCtxReset
//	while a stream is captured, threads that are not RELAXED    the same, cuThreadExchangeStreamCaptureMode; PyTorch's
//	  allocate, free, pin and ask for events in vain: 900         watchdog of NCCL asks for events in RELAXED
//	the legacy stream beside a capture of a stream that is      CUDA driver API, cuStreamIsCapturing
//	  not NON_BLOCKING: 906
//	freeing waits for the work of the process                   CUDA runtime API, cudaFree
//	a kernel that touches memory that is not the device's, or   CUDA driver API, CUDA_ERROR_ILLEGAL_ADDRESS
//	  not open to it: 700, which stays
//
// Rates are not emulated. The files test_driver_rules*.py of tests/py ask a driver about each rule that a program can
// see: this one in every run, and that of a machine with GPUs in make check-gpu.
//
// # Over a real driver
//
// The folder real has the doors of this library that a real driver can have, over public calls of it. An empty stand-in
// for libcuda.so.1 is enough to link them:
//
//	gcc -shared -Wl,-soname,libcuda.so.1 -x c /dev/null -o libcuda.so.1
//	gcc -shared -fPIC -O1 -fvisibility=hidden -pthread real/doors.c src/doors.c \
//	    -Wl,--no-as-needed libcuda.so.1 -o doors.so
//
// TENT_REAL_LIBCUDA=/path/to/doors.so makes Run use it, in binaries of go test -c as well; TENT_REAL_GPU=1 makes the
// tests of Python build and use it. Tests that hold work back, make calls fail, look at counters, or need other
// settings, versions or more devices are skipped there, with the reason.
package cuda
