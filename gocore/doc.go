// Package gocore is the way into tent's engine. It holds no code: read this page, then follow one transfer.
//
// # The packages
//
//	errs mem clock event config nic request   words: failures, memory, time, events, settings, interfaces, terms of a
//	                                          request
//	transport                                 the contract: how bytes are moved, with the promises of it
//	device                                    the contract of platforms: drivers of accelerators, and their memory
//	plan rail qos staging dispatch            the core: pure policy and one state machine, without clock, lock or I/O
//	segment meta security audit control       the control plane: the peers that are there, trust in them, their offers
//	metrics scrape topology                   figures for people and machines, and the server that gives them out
//	vmem traps                                the memory of this process, and its faults, as the kernel has them
//	share                                     load and wishes that the processes of a host publish
//	spin                                      whether a thread that looks in vain looks again or sleeps
//	engine                                    the shell: owns mutex and goroutines, the Go API
//
// Imports go down this list only, but for request, which has words of the contract; tests/go/architecture keeps the
// table. Transports live in ../transports: each imports the words, the contract, spin, transports/kit and
// transports/host, never the engine and never another transport.
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
// No goroutine was woken on this side, no memory was allocated, the mutex was taken twice. Over a transport that copies
// on the caller's thread (transport.Inliner) a small call is shorter still: engine/inline.go. A call of pages makes one
// task for each pair of regions; its pages are parts of that task (dispatch/parts.go).
//
// # Ownership
//
// Engine.mu guards the core and its mirrors. It is never held while a transport, the control plane or a callback is
// called. A goroutine that has work takes it by TryLock and runs the step (engine/step.go); if it fails, its work is in
// the inbox for the holder. The engine's own goroutines are, among others: progress (deadlines, and work that callers
// left), one that keeps our handler of memory faults in front, one for each region that is being closed, and one for
// each peer with a notification over the control plane. Others live as long as their work. Transports own theirs.
//
// # The end of things
//
// A task ends when its bytes are acknowledged or given up and no accepted slice of any of its attempts is outstanding:
// after that, nobody writes its destination or reads its source. A region's end is Transport.Revoke on every transport.
// A region that is fenced stays: tasks carry the epoch in which they began, and the owner refuses those of before
// (engine/fences.go).
// The order in which an engine shuts down stands at Engine.Close, with the damage that another order would do.
// A file is a peer with one region (engine/files.go); its sync comes behind its data and before the notification
// (engine/durable.go).
//
// # Trust
//
// An engine is named by its key, which TLS proves at both ends of every connection of the control plane (security). So
// no table trusts a message's word about its sender. transport.Peer's ID and Identity come from the connection, its
// Address and Name are hints for people, and Self is set only by calls that never left the process (engine/port.go).
// Lanes, pages and notifications prove or carry that ID. Listeners beyond loopback pass Engine.mayListen.
//
// # More
//
//	docs/design/overview.md               the same with a picture, and the five decisions behind it
//	docs/design/{failover,qos,quiescence,tcp-wire,adding-a-transport}.md
//	docs/design/sources.md                the five documents behind it, which comments call seeds
//	docs/design/decisions/index.md        dated choices, each with the alternative that was rejected
//	docs/glossary.md                      our words beside the literature's, algorithms with their sources
//	CONTRIBUTING.md                       the tree, the commands, the form of a change
package gocore
