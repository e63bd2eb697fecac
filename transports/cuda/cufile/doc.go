// Package cufile calls NVIDIA's cuFile: libcufile.so.0, which moves bytes between memory of CUDA devices and files
// (GPUDirect Storage). It is loaded by dlopen at its first use, never at import; TENT_LIBCUFILE names another one.
//
// The API is declared again in shim.h, so a build needs no header of the vendor. Without the library, or without a
// function of it that is needed, Check has the reason. Its driver is opened by the first call of Driver, once a
// process: that starts threads, and writes cufile.log into the working directory (CUFILE_LOGFILE_PATH names another
// file).
//
// # Modes
//
// With nvidia-fs.ko, devices and disks exchange bytes themselves: Facts.Native. Without it the library may copy through
// memory of the host, by threads of its own: its compat mode. Newer libraries can use the kernel's PCI P2PDMA without
// nvidia-fs, and have no property that says so; they count as compat here.
//
// # Batches
//
// Seen with libcufile 1.14.1 over the emulated driver of tests/fakes/cuda, the first two with 1.9.1 too:
//
//	an entry that cannot be posted     fails its whole Submit, and no event of that call ever comes, although entries in
//	                                   front of it may have run
//	Cancel                             returns success, and no event comes: nothing under way is ever cancelled
//	a Submit while entries are under   makes the batch lose events. So each run has a batch of its own, with one entry
//	  way in the batch
//	GetStatus without the context      cannot copy bytes that were read, and loses the event
//	GetStatus that a signal interrupts ends the process by an assertion: signals wait during each call (shim.c)
//	the 65th run of a process          waits in Submit, until an event of another is taken: package gds has a bound
//	a run that was cut short           is COMPLETE with a smaller result, which the caller has to compare
//
// Parameters of a run stay in memory of C until its event: the library may keep the pointer.
//
// # Threads
//
// Calls about memory of a device are made with its context current (driver.Enter). A process that was forked after the
// library was loaded may not use it: its calls fail, and say so.
package cufile
