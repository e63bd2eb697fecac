// Package engine is the shell around the core and the Go API of tent. It owns the core's mutex and goroutines, plugs
// the transports in, and keeps regions, segments and batches. gocore/doc.go describes the flow and the shutdown order.
//
// Every method may be called from any goroutine. A goroutine that waits in the kernel, as waiters do, keeps its share
// of GOMAXPROCS for up to 10 ms: a program that waits for as many transfers as there are processors should set it to
// two more than these, as the Python package does, or the next caller begins late.
//
// # Where to read
//
//	engine plugs core_options environment   the engine, its transports, the core's settings, and variables that count
//	close background                        the end of all that, and the goroutines of a part
//	call moves ranges pages                 a transfer that is put together, and its shapes
//	grid indexes addresses address_list     the pages, the integers and the prepared lists that shapes are made of
//	batch inline page failed                its record, the short way of small ones, and the view of callers
//	step schedule swap                      the core's steps, and a hook for tests
//	inbox outbox port pollers links         the reports and orders of transports around a step
//	questions gone                          signs of life that the core asks for, and the end of a peer
//	wait waiter epollset spinner            the wait for an end, which polls, spins or sleeps
//	signal history logs                     the news for programs: descriptors, events, log lines
//	durable notify note_limits notes        the end of a batch behind its last byte, and the notifications that come
//	regions registration region_work        memory that is registered, and goroutines of drivers that do it
//	region_state region_table region_tree   its life, and the ways to find it
//	alloc node machine platforms            memory of our own, its NUMA node, its device, and all devices
//	fences leases leasekeeper lease_tokens  the end of access to parts of it
//	rights offers changes own_keys          the peers that may use it, its description, and the news of a change
//	segments peers describing files         the peers and files that are open here
//	opening connect leased                  the ways to them, and their leases
//	renew astray                            keys and addresses of a peer that have changed under a transfer
//	listening naming answers                the control plane: its addresses, our name, and the calls of peers
//	visitors dismiss reload                 the peers that use us, and the end of their access
//	staging lending                         pools of host memory, and orders of peers for memory of our devices
//	gates holds                             streams that a transfer waits for, and that wait for one
//	reports refusals auditing               the news for peers and for the audit
//	snapshot endpoints explain standing     answers to operators
//	sharing traps                           load that the processes of a host share, and memory faults as errors
//
// # Locks
//
// A lock may be taken under one that stands above it, and never the other way round.
//
//	stagePools.making asking, endpoints, offers,  held for long, for a registration, a description or a call of
//	visitors.tidying renaming                     transports, and taken under no other lock
//	stagePools.mu
//	peer.mu                                       Attach, Import, Match and Forget are called under it
//	Engine.mu                                     the core is called under it, and a platform's latch; no transport is
//	parts, registering, notifier, gates.polling
//	port, ownKeys, regionTable, segmentTable, gates.mu, outbox.order
//	inbox, notes, history
//	signal, and all others                        leaves: nothing is taken under them
//
// Under the lock of notes the server of the control plane says which peers are connected.
//
// A step waits for neither outbox.holder nor gates.polling: a caller that fails leaves its work to the holder. The turn
// of describing is held while a peer is asked, so callers that wait for it may give up. It stands above all others.
//
// # Goroutines
//
//	progress       deadlines, and steps that callers left (step.go)
//	keepers        of handlers of memory faults, of gates, and of credentials, which ask peers for newer ones
//	single calls   a look at all peers behind a reload, and the leave of a file or of a peer that has gone
//	notifier       one for each peer with a notification over the control plane
//	reporter       reports to peers, one for all
//	changes        calls to those that know an older description, by one that ends when all have heard
//	renewals       one for each peer that is asked for its description again
//	leases         the keeper, while some lease has an end, and one for each that ends
//	regionWork     registrations of transports that pin pages, and the end of a region without users
//	sideBySide     calls side by side, within the call that makes them
//
// The first three are Engine.routines, and the next five the background of a part. Close ends them in the order that
// stands there. A driver may hang in the registration of a region or in its end: such a goroutine of regionWork alone
// outlives Close, which names its region.
package engine
