// Package cuda has two transports for memory of CUDA devices: "nvlink" between engines of one host, and "mnnvl" between
// hosts of one NVLink domain.
//
// They move bytes between two devices, and between a device and the host, by the copy engines of the initiator's
// process. The owner's does nothing. Memory of the host moves within one process: another one cannot map it. Both are a
// copier (copier.go) with an entrance for each link (link.go): a neighbour of this host, or a distant peer.
//
//	Submit    queues slices by class; a worker, or a waiter by Poll, posts the most urgent ones
//	bursts    short slices are posted together, by one visit to the driver (kit/burst.go)
//	ends      a waiter asks for them, else the worker, with pauses; nobody waits inside the driver (kit/posting.go)
//	streams   a device has one for each class and direction, with two slices in it, or eight short ones; the rest waits
//	          in class order
//	device    its pages are gathered and scattered by one batch of the driver, adjacent ranges as one
//	host      bytes go through pinned memory of ours, as the driver's own copies of unpinned memory do
//	Revoke    closes the region's permits, and waits for the copies of exactly those processes that are inside
//
// With host_register a region of the host is pinned as long as it is registered, and devices copy there directly. Where
// the driver refuses that, Explain has the reason, and bytes go as without it. Pinned memory must not be unmapped
// before its region is closed: no guard is between it and the device.
//
// The driver would copy memory of the host by itself, too. A page that is gone ends the process there, and fails one
// slice here.
//
// # Where to read
//
//	driver nvml                     the vendor's libraries, loaded when there are some: contexts, streams, copies
//	transport mnnvl settings        the two transports: Open, Register, Revoke, Remap
//	copier carry rooms              common to both: slices, the way of one, its copies and its pinned memory
//	link imports                    an attached peer, and its regions that are mapped here
//	neighbour blocks                a peer on this host, and the allocations behind its regions
//	distant fabricwire renew        a peer on another host: news, holds, and a peer that has forgotten us
//	guests fabricserve              such peers of ours
//	lost close                      the end of a device, and of the transport
//	cufile gds                      files: the vendor's library, and the transport over it
//
// # Memory of another process
//
// Two engines meet as those of shm do (package host/access): the kernel says which process the peer is, and the owner
// gives it a page of hazard slots. Address, size and permission of a region are read in the owner's manifest. The first
// import of a region asks the owner for its blocks, the allocations behind it:
//
//	legacy   memory of cuMemAlloc, so of cudaMalloc and PyTorch: 64 bytes that any process of the host can open
//	VMM      chunks side by side, as PyTorch's expandable segments: a descriptor each, passed by SCM_RIGHTS
//	fabric   the same chunks, where their allocator asked for no descriptor: 64 bytes, in one IMEX domain
//
// Handles and tickets are rights, so they travel in answers to a peer that was let in, never in a descriptor. A block
// is a whole allocation. Memory that shares one with a region becomes visible to the peer's process; it is of our user.
// The blocks are mapped once for an import, and opened for each device of ours that copies. The driver counts openings
// of one allocation, so regions in it share one mapping. Match opens them, so a plan leaves this transport out, with
// the reason, where there is no way.
//
// # Peer access
//
// Two devices without peer access between them are such a case, also in one process, where the driver's own copies
// would go through memory of the host without a word. Our staging does, and an explanation says so
// (docs/design/decisions/0127). Where there is access, Match opens the contexts of one process to each other: copies
// between them go straight from then on.
//
// A copier of another process holds a slot while its copy runs. A process that dies takes its copies with it: the
// driver ends them when it closes the process's device files, before the kernel reports the end by the pidfd. An owner
// that dies leaves the pages to those that map them, until the link is detached.
//
// # Memory of another host
//
// A device takes part in mnnvl if NVML names its domain, and a fabric handle could be made and opened (package driver).
// A region's descriptor has cluster and clique of its device, or why other hosts cannot map it. A link asks for the
// handles where a device here is in the same clique, and copies by it.
//
//	initiator (distant.go)                       owner (guests.go, fabricserve.go)
//	Greet, a call of the control plane ------->  a guest, with a token
//	learn: the handles of a region? ---------->  enters a hold, then looks at the door, then answers
//	maps, and copies through a gate of its own
//	hear: shuts the gate, waits, unmaps <------  Revoke: news to all that hold the region
//	says that it is quiet -------------------->  returns
//	releases, leaves, by messages ------------>  the hold, the guest end
//
// The gate is a page of hazard slots, as an owner of the same host gives it; here both sides are ours. No call of the
// driver takes a mapping of another host down. So a guest that does not answer is an error of Revoke that names it, and
// the memory must stay as it is (docs/design/decisions/0107). A guest that was taken for ended, and lives, is given
// another token, and asks for all that it has mapped again (0154).
//
// # Pages that are exchanged
//
// Remap, for chunks that were exchanged behind a region's addresses, gives the region another name. Peers hear of it by
// Host.Describe, and ask again; slices by the old name are refused as Replaced. Guests of other hosts unmap those of
// before.
//
// Memory that is freed by its owner while it is registered may be somebody else's afterwards. Close the region first.
//
// # Errors
//
// An error that stays ends one device (package driver): slices with memory of that device fail, those of others go on.
// Each link reports the loss once, by RailDown, and its rail comes back for the others (lost.go). Requests then take
// another route, where they have one: NICs reach memory of a lost device by its dma-buf, and the peer's own device may
// copy, through memory of the host.
// Memory that its owner has freed is an error of the driver's, and fails its slice.
//
// # Locks
//
//	imports.mu ─▶ distant.mu              its owner is asked for a region under it, and mappings are taken down
//	           ─▶ driver.Mapping.mu ─▶ driver's table of pairs
//	region.mu ─▶ guests.mu                Remap and Deregister of one region: guests are told under it
//	rooms.mu, offers.mu, holding.mu       leaves
//
// The executor has its own (package kit). The driver's shim has some in C: holding ─▶ lock, and that of the devices'
// contexts and streams, under which the driver makes these.
//
// # Goroutines
//
// The executor has one worker (package kit). Each link has one, which greets, asks and takes mappings down; nvlink's
// point has one that watches the processes of guests (package host/access). All end in Close, behind the copies.
//
// # Costs
//
// A slice takes some microseconds beside its bytes. On an H200 slices of 1 MiB had 0.85 and 0.79 of the driver's rate
// between device and host, and 0.06 of its 2 TB/s inside of the device. So they are longer where no byte crosses our
// pinned memory (copier.go); that was not measured on a GPU yet. The next slice is posted before a carrier asks for an
// end, so copy engines do not wait for the host, and bytes of the host cross to pinned memory meanwhile. Pinned memory
// is 15 MiB: 1 MiB for each of two slices of a lane, and 64 KiB for each of eight short ones. One of the first has 8
// MiB more where a slice was planned while its memory was pinned, and it is not any more. A burst costs one call of C,
// and so does the question for all posted slices.
//
// A page of 64 KiB took that H200 4.4 µs by a batch of the driver, and less than one of them is ours: the copy engines
// take pages one by one. With copy_kernel the processors of the device copy 168 pages at a launch (driver/kernel.c),
// where both ends are open to them (openToKernels).
// The kernel is in C; the emulated driver runs it, and NVIDIA's compiler has made PTX of it for compute capability 7.0.
// No GPU has run it yet, so it is off by default. Memory that is freed while its region is registered is worse with it:
// an access from a kernel is an error that stays.
//
// BenchmarkSlice measures that over the emulated driver with free copies, beside loops in C in the same run. Of 12 runs
// these are the least, the median and the most: first on two quiet cores, then on the same two with a busy thread each.
//
//	                                                    each                    a slice is above by  ratio
//	a slice                                             391, 417, 449 ns
//	a loop that makes its context current at each call  234, 240, 249 ns        153, 178, 200 ns     1.7
//	a plain loop                                        101, 104, 106 ns        286, 314, 344 ns     4.0
//
//	a slice                                             372, 449, 1169 ns
//	a loop that makes its context current at each call  230, 246, 337 ns        124, 189, 930 ns     1.8
//	a plain loop                                        99, 104, 154 ns         263, 338, 1066 ns    4.3
//
// The target is 400 ns above a loop. Without bursts the medians above the plain loop were 439 and 583 ns, in turns with
// these runs.
package cuda
