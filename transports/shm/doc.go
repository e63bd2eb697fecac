// Package shm is the transport of one host: it copies between memories of two processes, or of one. It needs no socket,
// and the owner of the remote memory does not even wake up.
//
// # Where to read
//
//	transport settings       the transport, its settings, and its end; survey and describe are for people
//	regions memory           our memory: registered, and allocated
//	link imports wire        a peer that we attached to, and the ways to its regions
//	inline                   a little on the caller's thread
//	submit queue crew        slices that wait, and those that copy them
//	carry                    a bite of them, through a mapping or by the kernel; package copying is the plain copy
//	tracer                   the one process that Yama lets in
//
// Peers that attached to us are those of package access, their pages those of package hazard.
//
// # Two kinds of memory
//
//	allocated by tent     a memfd (or a file under cxl_mount_path), which peers map once; a transfer is a copy
//	owned by the user     torch, NumPy, malloc: process_vm_readv and process_vm_writev, many ranges a system call
//	of our own engine     a copy, for memory of any owner
//
// Which one it is stands in the owner's manifest. Registering costs nothing per byte. A region that cannot be mapped
// is reached through the kernel as well, and the other way round nothing is tried.
//
// # One WRITE
//
//	Inline              key -> imported region by one index; is the rail up, does nobody more urgent wait
//	  hazard.View.Enter   the peer's copiers name the region in the owner's page; the owner may have revoked it
//	  copy                into the mapping, or by one system call
//	  hazard.View.Leave
//
// No lock, no allocation, no other goroutine, and a clock only before the system call; some 65 ns beside the copy
// (BenchmarkInline, processor time). A slice that does not fit there (more than 256 KiB, or a more urgent class waits)
// goes through Submit into a queue per class. Any of these empties it that has time: the submitter for a little, a
// waiter (Poll), and copy workers, one less than there are cores, which sleep otherwise: waking one costs more than
// copying 256 KiB.
//
// # The queue
//
// Copiers take bites: a piece of at most 512 KiB of one slice, or as many small slices of one region as are one system
// call. After each bite they look at the classes again, so HIGH waits for one bite of each copier however much LOW is
// queued. A second copier joins where 16 MiB wait: below that two are slower than one (cold caches, and the wake-up).
// Withdraw and Fence complete waiting slices at once; a slice that is being copied ends by itself, within the bite.
//
// # Access
//
// Peers that get in run as the same user, which could read our memory by a debugger; they are trusted not to be
// malicious. Beyond the greeting, checks guard against mistakes. The initiator takes permission, bounds and address of
// a region from its owner's manifest, maps a read-only region for reading only, from a descriptor that is open for
// reading only, and holds a hazard slot of the owner's page while it touches bytes. The owner revokes there without
// asking anybody, and waits for exactly the copiers that are inside (package hazard). A peer that was killed is no
// obstacle; one that was stopped inside a copy makes Revoke, Free and Close name the process that still holds the
// memory, and memory of Allocate stays until it does no more.
//
// Everybody else is kept out by the greeting. A stranger may be a peer that opens us, or one that we open.
//
// # Order of the bytes
//
// Mapped memory is one cacheable page in two address spaces, so amd64 and arm64 keep it coherent. A completion says
// that the bytes of a slice were stored; it promises nothing about the order in which they were. A reader has heard of
// the completion: through the hazard slot (a release and an acquire), through locks of this process, or by a message
// that passed the kernel's. Each of those orders the copier's plain stores before the reader's loads, on arm64 too,
// where release and acquire are cumulative. Non-temporal stores are fenced before the completion (package copying). A
// program that polls the bytes themselves, without a completion or a message, may see them in any order on arm64.
//
// # How peers meet
//
// A greeting over the control plane names a process and a file of it, the engine's manifest; the answer does the same.
// Each side looks itself: package manifest says how a process is known as that of the peer with the id that the control
// plane has proved. Only then does the owner make a page for the peer. A refused peer always hears the same sentence,
// and costs nothing; the owner's log and tent_refused_total have the reason.
//
//	stranger                               its end
//	relays our greeting to a third         the third one's manifest has another id
//	  process, or back to us
//	names any process as its own           no manifest with the stranger's id there
//	greets without end                     no page is made; eight greetings at once are looked at, others wait
//	gives us a forged descriptor           it holds a name only; the rest is in the owner's manifest
//
// Descriptors of page and memory travel as numbers, and the peer opens /proc/PID/fd/N. Of the ways to hand over a file
// that one was chosen: pidfd_getfd is refused by Yama's scope 1, which distributions ship; a socket and SCM_RIGHTS need
// a common file system or network namespace and a thread that answers. /proc needs the right to read, which Yama leaves
// to the same user, and can give less access than the owner has. Inode numbers say whether the file is still the one
// that was meant.
//
//	boundary                               effect
//	other user, user or pid namespace      the link is down for good, and says so; tcp serves
//	trust: none, on either side            the same
//	Yama's scope 1                         the first peer is named as tracer, and all with allow_any_tracer; for the
//	                                       others, allocated memory is mapped, Import of other memory says why it
//	                                       cannot be reached
//	Yama's scope 2 or 3                    allocated memory only
//	not dumpable, /proc with hidepid       nothing: processes cannot be told
//
// The end of a process is heard from its pidfd, at once. A peer that calls exec goes on as another program, and its
// pidfd says nothing. So its address space is asked (vm.Space): before a system call that copies, if the last answer is
// a millisecond old, and by each link every five seconds, for mapped memory, which is nobody's then. A transport that
// closes says goodbye to the peers that attached to it. An initiator that leaves says so by a message and in the page:
// the message may be lost.
//
// # Locks
//
// queue.mu guards the slices, link.mu the imports, memory.mu the allocations; the core is called under none of them.
// Under link.mu files of the peer are opened and mapped, and the end of a region waits for its copiers, two seconds at
// most. Under memory.mu the hazard table is asked. Copiers take queue.mu alone, for some hundred nanoseconds.
//
// # Goroutines
//
// The copy workers and, with the first foreign peer, one that sleeps on all pidfds; one a link, which greets, brings
// the rail up, makes mapped pages present and unmaps revoked regions. Close stops and awaits them in that order: links,
// then copiers, which complete the links' slices, then peers' pages, then the watcher.
//
// Choices with a rejected alternative are records in docs/design/decisions: 0039, 0040, 0053, 0163.
package shm
