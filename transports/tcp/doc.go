// Package tcp moves slices over TCP connections: the transport that works everywhere.
//
// # The way of a slice
//
//	initiator (it attached)                                   responder (it owns the region)
//	Submit    choose a lane, number the slice, queue it
//	          pump: one sendmsg for up to 256 slices  ──────▶ drain: recvmsg straight into the region
//	                                                          answer: one cumulative ACK a burst
//	Poll or   drain: ACK completes every WRITE up to it ◀────
//	a worker
//	          READ: records only                      ──────▶ queued by class, within the credit
//	          recvmsg straight into the destination   ◀────── pump: DATA, 256 KiB at most a frame
//
// The thread that has work does it: Submit writes on the caller's thread up to a budget, a waiter reads by Poll, and
// workers (goroutines in epoll_wait) do the rest. Handing 4 KiB to a sleeping thread would cost more (40 to 100 µs)
// than sending it and getting the answer (10 to 15 µs).
//
// # Rails, lanes, connections
//
// A rail is a pair of addresses (pairs.go). Each has two class groups, class 0 and the rest, of Settings.Lanes
// connections; the rest has one until its first large slice (widen.go). So neither a byte nor an acknowledgement of
// class 0 waits behind others' payload. Slices below 64 KiB share a lane and its system calls; larger ones go to the
// lane that has least to do. A conn (conn.go) is the socket with its reader and writer; the initiatorLane or
// responderLane on it gives frames their meaning. state.go draws their lives.
//
// Workers serve class 0 of all peers first (turns.go), and a responder's lane sends DATA of the most urgent class that
// waits (serve_reads.go). The core at the end that asked bounds the bytes of LOW in sockets and queues by a window of
// time; a responder does not weigh the windows of several peers against each other.
//
// A rail is up when all its lanes are, and goes down with the first that breaks; the link dials it again under the
// next generation (redial.go). The kernel reports when one of our ends loses its interface or its address (watch.go),
// and GONE passes that on to the peer over other lanes. Pairs beyond the matching are alternates, which are dialled
// while a rail of one of their ends is down.
//
// The wire format stands at the top of wire.go, the calls over the control plane in control.go.
//
// # Where to read
//
//	transport settings close                  the transport, its settings, and its end
//	link link_state rail pairs                a peer that we attached to, its rails, and which of them there are
//	control calls resolve                     calls over the control plane: to be let in, and about WRITEs in doubt
//	dial redial knock widen                   connections of a rail: one try, the pace of tries, strange endpoints, more
//	watch place heard probe                   the kernel's word on our ends and connections; whether a rail works
//	conn conns state buffers                  a connection, the way from an event to it, the life of a lane, its buffers
//	wire writer receiver sys_linux            frames, bytes that leave, bytes that come, and the system calls for them
//	chunk chunks checksum lost                protected lanes, checked slices, and memory that is gone
//	submit outbox initiator                   our slices, from acceptance to the end
//	worker turns attend park                  workers, which serve lanes by class, and waiters that look or sleep there
//	listen strangers greeting admission       connections that come, until they have proved themselves
//	attachments responder serve_reads         peers that attached to us, their WRITEs, and their READs
//	regions revoke lease                      our memory, its fence, and a sleep of our own
//	notify goodbye                            messages, and the orderly end
//	survey describe                           for people
//
// # How a slice ends, and why nothing lands later
//
//   - Not sent: dropped from the queue.
//   - READ: our reader discards the rest; copyMu makes Withdraw wait for the piece under way.
//   - WRITE, sent: WITHDRAW on every lane of the link, repeated and at last over the control plane. The responder
//     marks the number void under the lane's copyMu, so it waits for the piece under way and for nothing else;
//     CONFIRM answers which slices had landed. The source is quiet before that: unsent bytes of a frame that was
//     begun are copied.
//   - Its memory is gone, at either end: AddressNotRegistered for this slice; frame and lane go on (lost.go).
//   - Checked, and different where it lands: refused as Corrupted, like a slice that is not allowed (checksum.go).
//   - An acknowledgement or a refusal before all bytes have left, and a verdict that nobody asked for, end no slice: a
//     peer could have memory of after the end sent, or written. The former breaks the lane (outbox.go).
//   - A broken lane: no reset and no shutdown is a fence, since Linux still hands out bytes that a socket has received.
//     FENCE names the lane over another one, a new one, or the control plane; its reader never copies again, and the
//     answer says how far it had come: delivered but reported lost is complete.
//   - A peer that has ended (data port and control plane refuse, or another incarnation answers) writes no more.
//   - A responder that slept for longer than its lease asks the sender of the bytes in its sockets before it writes
//     them. It knows by a timer that it slept, and by the kernel how long they have waited (lease.go).
//   - Revoke, the owner's fence (revoke.go), needs no peer: slices come in the epoch of their task, and the region
//     refuses older ones than its last fence.
//
// # Ownership and locks
//
//	readMu    the right to read a socket: TryLock by workers and pollers, Lock only to close it
//	writeMu   the right to write it: TryLock by pump, Lock to copy unsent bytes (one system call long) and to close
//	copyMu    held around each piece of payload on its way into memory; revocations and withdrawals take it
//	mu        queues and numbers; never held across a system call
//	armMu     the events that epoll was asked for, and whether the descriptor is still open
//
// They are taken in this order; link.mu and attachments.mu come before a lane's copyMu and mu, and after its readMu. No
// lock is held while the Sink is called but readMu, which nothing that the core calls waits for. The state of rails
// belongs to their link's goroutine (link.go). A worker that finds readMu taken notes that it was there and leaves; the
// holder arms epoll again when it lets go. All other locks are leaves, and short, but for those of watch and places:
// under these the kernel is asked about interfaces.
//
// A panic ends the turn in which it came, and the locks of that turn are let go. It breaks the lane, makes a dial or a
// call fail, or breaks all lanes of a link, and is the cause that the core hears.
//
// # Goroutines
//
//	workers          Transport.workers: they serve lanes and listeners until stopFd ends them
//	a link's run     while there is something to do for it; Transport.running counts the links until they are over
//	single calls     Transport.tasks: a dial, a call to a peer, the close of a peer's lane (spawn)
//	news             of interfaces: until its socket is closed (watch.go)
//	timers           of a link, of lanes at rest, of a stranger, of a listener that rests, and the pulse; each looks
//	                 whether its owner has ended, and does no more then
//
// # Shutdown
//
// Detach: sockets are closed at once. WRITEs in doubt complete with the peer's answer or the proof of its end, however
// long that takes.
//
// Close: nothing new is accepted; every link is left (lanes closed, the peer asked about WRITEs in doubt for at most
// a second, everything completed); goroutines of calls end; workers end; lanes of peers say goodbye and are closed;
// then listeners. Listeners come last because peers take a refused dial for the proof that nobody reads their lanes
// any more. An orderly end is announced (goodbye.go): the peer forgets a link that was detached, and takes a
// transport that closes for no failure.
//
// # Hostile peers
//
// A lane proves that it knows its attachment's secret before it gets buffers (greeting.go). Connections that name no
// attachment are bounded in number and time, and the oldest goes for a new one (strangers.go). Attachments and lanes
// have a bound for each peer and for all, lanes a share of the process's descriptors (attachments.go). Every length is
// checked before it is used, every slice against the region and its permission; keys cannot be guessed (regions.go).
// The memory that a peer can make us use is bounded by its credit (1024 slices a lane) and by ctlMax for answers that
// it does not read. A peer sees no reason for a refusal; our log and counters have it.
//
// # Protected lanes
//
// Where the engine demands it (transport.Protection), lanes carry chunks with tags (chunk.go). The stricter demand of
// two peers counts. Bytes are sealed and opened in buffers of the lane (chunks.go), so the kernel does not see users'
// memory then, and no byte that fails its check is written there. All else is as on other lanes: frames, numbers,
// verdicts and locks; bytes that were copied for a chunk have left.
//
// # Numbers
//
// One system call costs 0.2 to 0.3 µs, a loopback send some 4 µs, a copy by the kernel 0.1 µs/KiB on each side. A
// slice costs some 50 ns on each side besides: a ring entry, a record of 24 bytes, a region lookup, an iovec. So 64
// slices of 4 KiB are one send of 256 KiB (about 40 µs), bulk is bound by the two copies (about 0.25 CPU-seconds a GB
// for both ends together), and a small slice by two sends and two receives. BenchmarkMove measures them;
// tests/bench/cpeer.c is the plain program beside it. A checked slice is read once more on each side, at 20 GB/s
// (BenchmarkChecksum).
//
// Choices with a rejected alternative are records in docs/design/decisions: 0029 to 0036, 0055, 0056, 0079, 0095,
// 0159 and 0160.
package tcp
