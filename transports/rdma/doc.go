// Package rdma moves bytes by RDMA: one-sided WRITE and READ of NICs, over all of them, by libibverbs.
//
// # Where to read
//
//	verbs                        the library, loaded when there is one
//	transport settings status    Open, Close and the keys; status is the table of errors and events, and their blame
//	nic devices uses             a NIC and its news; NICs come and go; the work that keeps one from being given back
//	topology netdev examine      where it hangs, how near it is to memory, and the causes of slow RDMA for people
//	region memory gpudirect      memory that NICs have pinned, with local and with remote keys; its descriptor
//	link rail lane mend          a peer, a pair of NICs, their queue pairs, and the goroutine that connects these
//	gid prove                    the address that leads to the peer, and the proof that it does
//	store                        the rails of a device that have queue pairs, which others take over in turn
//	submit classes poll          a slice is many work requests, of which the last is signalled; its completion
//	guest dismiss stay           a peer's link to us: the queue pairs that receive; their end, also of a silent peer's
//	revoke rekey                 the fence of an owner, and the keys that it replaces
//	wire                         messages between engines, over the control plane; data never passes there
//
// # Proofs that bytes are quiet
//
// A NIC carries WRITEs and READs out without asking the engine that owns the memory. So each proof is a queue pair's:
//
//   - a READ of ours is over when our queue pair is reset;
//   - a WRITE of ours is over when it is acknowledged, or when the peer has reset its end: a packet of it that is still
//     under way finds nobody. The peer is asked over the control plane, by any way that leads to it;
//   - a peer's slices are over when it has answered that none is out, or when our ends of its lanes are reset.
//
// A slice without its proof is in limbo (rail.go): its completion comes later, also when its rail is down. A call that
// resets or closes a queue pair proves its end by success, or by EIO of a device that was pulled (nic.endPair).
//
// # Keys
//
// An rkey is a bearer right: a peer that has one and a queue pair to us may use it. Queue pairs are connected for peers
// only that the control plane has identified. A NIC may give the key of a closed region to the next one. So a key is
// closed behind the answers of all peers that learned of the region, or behind the reset of their queue pairs
// (revoke.go), and a link asks the owner about each region that it imports. An answer is no proof: a fence replaces the
// keys of its region, too (rekey.go).
//
// # Visibility
//
// The acknowledgement of a WRITE may overtake its bytes on the owner's PCI bus. Behind the WRITEs of a posting comes a
// READ of a few bytes of each memory, on the same queue pair. It pushes them, and they complete with the last one
// (write_visibility). A READ into a GPU that may see its bytes late ends behind a flush of the GPU's driver
// (batch.flush).
//
// # Cost
//
// Slices of one rail are posted in chains, by one call of C each. Work requests are written in the library's own form,
// and consecutive slices share their look-ups. Where each slice is 16 work requests or more, a request costs 22 ns
// beside the 18 ns of a loop in C, and 51 ns beside 26 where it is a slice by itself (BenchmarkWorkRequest).
// A waiter that sleeps makes two changes of an epoll, arms queues that have rung, and quiets those that ring (poll.go).
//
// # Locks
//
// A lock may be taken under one that stands above it, and never the other way round.
//
//	Transport.changing, link.hearing, link.growing    one change of the devices; one piece of news; rails that come
//	region.pinning                                    one change of a region's keys: devices register, peers are told
//	rail.work, a token of guestRail.busy              one change of queue pairs, which may take a second
//	guest.mu, region.closing
//	guests.mu, region.mu, store.mu
//	device.mu                                         a queue is made under it, and entered under the next one
//	device.pollMu                                     the right to take completions
//	rail.mu                                           work requests are posted under it, and the sink is never called
//	batches.mu, reachTable.mu                         leaves
//
// The sink is called without device.mu and those below it: a step of the core inside Complete polls and arms. Pages are
// unpinned without them too (uses.end).
//
// # Goroutines
//
// All belong to the Lifecycle of the transport, which Close waits for; those of a call end with it.
//
//	scan              looks for NICs and silent guests, and keeps links in touch, until Close
//	stay              one word of a link to its peer
//	listen, attend    of a device, for each bell and for its news; retire ends them, or Close, by wake
//	retire            of a device that is lost, until nothing of it is left
//	open, again       of a link, until its peer has named its devices
//	mend              of a rail, one at most, while lanes are to be connected or closed
//	leave             of a link that was detached, until its WRITEs are proved to be over
//	expel             of a guest with queue pairs that do not end
package rdma
