// Package gocore is the way into tent's engine. It holds no code: read this page, then follow one transfer.
//
// # Who is who
//
//	errs mem clock event config nic    words: failures, memory, time, what happened, what was set, network interfaces
//	transport                          the contract: how bytes are moved, and what is promised of it
//	plan rail qos dispatch             the core: pure policy and one state machine, without clock, lock or I/O
//	segment meta control               the control plane: who is there, what do they offer
//	metrics topology                   what people and machines look at
//	share                              what the processes of a host tell each other
//	engine                             the shell: owns mutex and goroutines, the Go API
//
// Imports go down this list only; tests/go keeps the table. Transports live in ../transports: each imports the words and
// the contract, never the engine and never another transport.
//
// # One WRITE of one page, over TCP
//
//	engine.Move            validates, finds both regions, takes their plan (plan.Build, made once)
//	  dispatch.Submit      a task in a slab; it waits in the queue of its link and class
//	  dispatch.Step        a rail with room pulls: a slice is cut from the task, now and not before
//	  outbox.drain         outside the mutex, in order: tcp.Submit sends header and page by one system call
//	peer: tcp reader       checks key, offset and permission, receives into the page, acknowledges
//	engine.Wait            the waiter polls the socket itself: tcp.Poll reads the acknowledgement,
//	  port.Complete        leaves it in the inbox and runs the step:
//	  dispatch.Step        slice -> task -> batch; the page that Python reads says COMPLETED
//
// No goroutine was woken on this side, no memory was allocated, the mutex was taken twice.
//
// Over a transport that copies on the caller's thread (transport.Inliner) a small call is shorter still, engine/inline.go:
// dispatch.Reserve looks whether anybody would be passed, the transport copies without the mutex, dispatch.Record enters
// tasks that have COMPLETED. A call of pages makes one task for each pair of regions; its pages are parts of that task
// (dispatch/parts.go) and travel in slices of many pieces where the transport takes them.
//
// # Who owns what
//
// Engine.mu guards the core and what mirrors it. It is never held while a transport, the control plane or a callback is
// called. A goroutine that has work takes it by TryLock and runs the step (engine/step.go); if it fails, its work is in the inbox
// for the holder. The engine's own goroutines are: progress (deadlines, and what callers left), one a region that is being
// given back, one a peer whose notification goes over the control plane. Transports own theirs; the control plane has gRPC's.
//
// # The end of things
//
// A task ends when its bytes are acknowledged or given up and no accepted slice of any of its attempts is outstanding:
// after that, nobody writes its destination or reads its source. A region's end is Transport.Revoke on every transport.
// The order in which an engine shuts down stands at Engine.Close, with what each step would break if it came elsewhere.
//
// # Files
//
// A file is a peer that only transports with Info.Files attach (engine/files.go), with one region of kind File: from there
// on nothing knows that it is one. Two things are said of files alone. What belongs to a batch's end behind its last byte
// comes in the order data, sync, notification (engine/durable.go). And a kernel gives an operation back when the device is
// done, not when it is asked: such a transfer ends dirty after fence_timeout_file_ms, and its memory and file stay in use
// until the kernel has let go.
//
// # Where this differs from the design page
//
//   - A withdrawal goes through the rail's outbox like a submission (engine/outbox.go), so it cannot overtake the slice
//     that it withdraws on the way to the transport. 2026-11-21
//   - Poller has Park instead of Fd: the transport knows which of its sockets owe an answer, sleeps on those together with a
//     descriptor by which the engine wakes it, and leaves the others to its own readers. A descriptor for everything would
//     wake the waiter for everybody's bytes, and the readers beside it. 2026-11-21
//   - Whoever held the engine's mutex, even only to look, looks at the inbox afterwards (Engine.unlockAndDrain): a completion that found
//     the mutex taken by a look was left behind otherwise. 2026-11-21
//   - A step cuts at most 64 slices and is due again at once, so that the first of many are on their way while the next
//     are cut. 2026-11-21
//   - Queues are per link and class, not per peer and class: a task's current route names its link, and links of several
//     transports to one peer share what must be shared, the open withdrawals. 2026-11-21
//   - Merging happens when a slice is cut, not when requests are submitted: a slice may span neighbouring tasks, and each
//     task keeps its own account. So nothing has to be taken apart again when a part of it fails. 2026-11-21
//   - Cancelling what waits behind the last byte of a batch (a sync, a notification) ends it as CANCELED, although all tasks
//     are COMPLETED: nobody was told that it is done, and somebody was told that it is not. 2026-11-21
//   - Each open of a file is a peer of its own, even of the same file: size, permission and durability are those of the open.
//     What is shared, descriptors and the page cache, the kernel and the transport share. 2026-11-21
//   - The contract has Witness: when a rail's peer was last heard of, by the system's account. Progress, which a transport
//     tells on its own, would cost every transport a clock; a core that doubts a rail asks instead. 2026-11-21
//   - Revoke takes keep: fence and close of a region are the same operation of a transport but for what follows. 2026-11-21
//   - The choice of a rail compares health in steps of one failure, not to the last point, and an alternate joins only when
//     it has answered a probe and an end of it has no healthy rail of the matching. 2026-11-21
//   - Clocks of silence: a transport that is a Witness is asked before a rail is suspected, because a slice of a megabyte on
//     50 MB/s says nothing for 20 ms while its packets are acknowledged. 2026-11-21
//   - NUMA is one node a region (engine/node.go), and what nobody knows keeps nobody away: no transfer fails for it, also not
//     with allow_cross_numa false and no near rail left. 2026-11-21
//   - What an attempt's TIMEOUT means: an error with this code from a transport is retried like any other; only a task's own
//     deadline ends the task. 2026-11-21
//   - The header of shared slots keeps magic, version and current_slot, with a version number of our own: upstream's processes
//     and ours refuse each other's files. An engine that cannot share at start fails; one that cannot later goes on alone,
//     with an event (package share). 2026-11-21
package gocore
