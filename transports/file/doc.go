// Package file moves bytes between memory and files of this machine. It holds two transports:
//
//	io-uring   O_DIRECT by one io_uring, for files and ranges that take it; the edges of a range by the page cache
//	buf-io     preadv2 and pwritev2 through the page cache, by threads and by waiters
//
// io-uring is preferred for a file on a disk: a third of the processor time a byte, no copy, no page cache filled with
// bytes that the user caches himself. It leaves files that take no O_DIRECT to buf-io (tmpfs, some network and FUSE
// file systems), because for bytes in the page cache threads beat a ring; transports/io_uring/direct "off" makes it
// take them all, but those of FUSE, where the kernel goes on in the wrong place after a short operation (owner.suits;
// docs/design/decisions 0037). Where the kernel gives no ring, buf-io moves everything. A READ of bytes that the page
// cache has already is copied from there, by the caller, a waiter or the ring's owner (cache.go; records 0116, 0125).
// Bytes of a file on a disk that many readers share are faster through the page cache: switch io_uring off for them.
//
// # Links
//
// A peer of these transports is a file, "file:///path", or a folder of files. It is there at once and has one rail.
// OpenFile checks, makes and grows; Import opens the described file, and makes sure that the name still means the same
// file (device, inode, and birth but on overlayfs): a file that was replaced is refused, not written. A file that was
// deleted is still there for those that have it open, as everywhere on Linux. Peers of other processes never get at
// files: there is no descriptor of a region to give away, and Serve refuses.
//
// # From a slice to the disk
//
//	Submit    checks keys, bounds and permission; a slab item; the queue of its class
//	mover     takes from the queues, HIGH first: a worker one slice at a time, the ring's owner as many as it has room
//	          for
//	item      is cut into operations: a run of the file that lies side by side, at most 1 MiB, from up to 16 (ring) or
//	          64 (threads) pieces of memory; a short one goes on where it stopped
//	finish    one Complete for all that ended together
//
// Between Submit and completion there is no allocation. A transfer of 1 MiB takes the disk some 700 us, the ring's
// owner 50 us; of 4 KiB 10 us and 3 us; a cached READ of 64 KiB is 5 us of copying, carried out on the caller's thread.
//
// # Edges
//
// A unit is the largest of page, file system block and the unit of O_DIRECT. Whole units of a range go past the page
// cache, the rest at its edges goes through it. Two ranges that do not overlap may share a unit, and then both write it
// through the page cache, where the kernel keeps them apart: neighbours in one process or in several lose no byte.
// (Reading a unit, changing a part and writing it back directly would need a lock that all of them know.) A direct
// operation flushes and drops the page cache's copy of its range, so the two ways see each other's bytes once one of
// them has completed. It cannot drop pages that become dirty meanwhile, and the page cache's folios are larger than
// units: so WRITEs of the two ways to one file take turns (turns.go, record 0169). Other engines and programs do not.
// Where they write a file through the page cache in the same moment, next to bytes that go past it, the kernel may keep
// old bytes cached and fail their next fdatasync with EIO: open such a file with cached=True. Memory that O_DIRECT does
// not take, NumPy's for example, passes through aligned buffers of the ring's owner.
//
// Ranges that overlap and are written at the same time end up with the bytes of either, in pieces of any size; as ever.
//
// # Failures
//
// NotFound, PermissionDenied (also EROFS and a path outside of the roots), InvalidArgument, NoSpace (ENOSPC, EDQUOT,
// EFBIG), Stale (replaced) and AddressNotRegistered (cut short: a READ past the end fails whole, though the bytes in
// front of the end may have been stored) are facts, and end a transfer at once. StorageError (EIO and the like) has the
// scope of the link: the other transport takes another way through the kernel, and the failover budget ends it. EINTR
// and EAGAIN are tried again, at most 64 times for one operation.
//
// A withdrawn slice that waits ends at once; operations in the ring are asked back (IORING_OP_ASYNC_CANCEL), and a disk
// finishes first those that it has got already. So a slice may stay outstanding for as long as a disk hangs, its memory
// stays referenced, and Close names it when its context ends. The transport ends by itself when the kernel gives it
// back.
//
// # Durability
//
// A completion says that the kernel has the bytes, and OpenFile promises nothing about a name. Sync is fdatasync, and
// behind the first of a file fsync of its folder (docs/design/decisions 0198). It is one at a time a file, each on a
// goroutine of its own, so that a slow disk holds up neither slices nor other files; calls that come meanwhile share
// the next one. It is no operation of the ring: the kernel would give it to a thread as well, and both transports share
// this one (docs/design/decisions 0038).
//
// A failed write-back stays with each handle of the file that was open then: each later Sync of it fails until the file
// is opened anew. The kernel reports it once a descriptor, so one of two batches would end as durable with its bytes
// lost (record 0170). A descriptor that was given up and opened again is told unless another program has asked
// meanwhile.
//
// # Goroutines, locks, descriptors
//
// io-uring: the ring's owner, locked to its thread. buf-io: Settings.Workers. Both: one a file that is being opened,
// closed or synchronised, because its file system may hang (apart.go). At most 64 of the first two are in the kernel
// for a file system (room.go). An opening is given up with its caller, and that of an imported file after 5 s.
// base.mu is held for moments and never across a system call, a copy or a callback; inode.syncing orders goroutines
// that synchronise one inode. At most Settings.Descriptors files stay open that nobody uses; the longest unused is
// closed first and opened again at its next use. Those in use come on top, never more than there are slices.
package file
