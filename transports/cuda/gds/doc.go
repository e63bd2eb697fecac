// Package gds is the transport "gds": memory of CUDA devices and files, by NVIDIA's cuFile (GPUDirect Storage).
//
// It brings a file.Library, and package file does the rest: a file of gds has the roots, sizes, permissions, durability
// and withdrawals of every other. Package cufile has the calls, and the traps of the library.
//
//	Register   pins the region for the library. A refusal is a reason: its bytes go through memory of the host
//	Import     registers the descriptor, past the page cache where the file takes that. A file that cuFile does not
//	           take, one of tmpfs for example, is left to the others, with the reason
//	runs       io_batch_depth of them are in batches at once; a library without batches has threads that wait
//	edges      the ends of a WRITE that are no whole units go through the page cache: cuFile would read, change and
//	           write the unit, and lose bytes of a neighbour
//
// # Compat mode
//
// Without nvidia-fs.ko the library copies through memory of the host itself. Staging does that too, with io_uring, and
// takes less of the processor. So routes of gds come behind staged ones then (Info.Bounces), unless a hint or a policy
// asks for gds. Explain and doctor name the mode. decisions/0098 has the choice, and the reason why gds is off by
// default.
//
// # Failures
//
// Each failure of cuFile has the scope of the link, and the next route is a staged one: users see bytes that arrive. A
// run that was cut short is a failure, unless the file ends there by now. That is AddressNotRegistered, as for other
// transports of files. A run that is under way is never called back: a withdrawn slice ends with its event, and until
// then its memory stays referenced.
//
// # Kept for the process
//
// cuFile's driver is opened with the first transport, and starts threads. It has no way back (rule f of package
// transport). Pinned regions, descriptors and batches end with the transport.
package gds
