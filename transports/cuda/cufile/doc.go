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
// Seen with libcufile 1.9.1 (and its documentation where it says so):
//
//	an entry that cannot be posted     fails its whole Submit, and no event of that call ever comes, although entries in
//	                                   front of it may have run. So a Submit here has one entry: when it fails, nothing
//	                                   of it runs, and the batch takes no more
//	Cancel                             returns success, and no event comes. So nothing under way is ever cancelled: a
//	                                   run ends by its event
//	GetStatus                          returns each event once, in any order
//	a run that was cut short           is COMPLETE with a smaller result, which the caller has to compare
//	a batch has room again             for certain when all of its events have come. So batches take turns
//
// Parameters of a run stay in memory of C until its event: the library may keep the pointer.
//
// # Threads
//
// Calls about memory of a device are made with its context current (driver.Enter). A process that was forked after the
// library was loaded may not use it: its calls fail, and say so.
package cufile
