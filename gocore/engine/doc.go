// Package engine is the shell around the core and the Go API of tent. It owns the core's mutex and goroutines, plugs
// the transports in, and keeps regions, segments and batches. gocore/doc.go describes the flow and the shutdown order.
//
// Every method may be called from any goroutine. A goroutine that waits in the kernel, as waiters do, keeps its share
// of GOMAXPROCS for up to 10 ms: a program that waits for as many transfers as there are processors should set it to
// two more than these, as the Python package does, or the next caller begins late.
//
// # Where to read
//
//	engine plugs close               the engine, its parts in their order, and the end of them
//	call moves ranges pages          a transfer that is put together; grid, indexes and addresses are its shapes
//	batch inline wait                its record, the short way of small ones, and the wait for its end
//	step inbox outbox port           the core's steps, and the reports and orders of transports around them
//	durable notify note_limits       the end of a batch behind its last byte: syncs, and its notification
//	regions registration alloc       our memory; region_table finds it, fences and leases end access to parts of it
//	rights offers changes            the peers that may use it, its description, and the news of a change
//	segments peers describing        the peers that are open here; opening and connect are the ways to them
//	renew astray                     keys and addresses of a peer that have changed under a transfer
//	visitors dismiss reload          the peers that use us, and the end of their access
//	staging lending                  pools of host memory, and orders of peers for memory of our devices
//	gates holds                      streams that a transfer waits for, and that wait for one
//	history logs reports refusals    the news for operators and peers; snapshot, explain and standing answer questions
//
// # Locks
//
// A lock may be taken under one that stands above it, and never the other way round.
//
//	stagePools.making asking, visitors.tidying renaming, endpoints, offers    held for long: transports are called under
//	                                                                          them, and they are taken under no other
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
// Those of a part of the engine are its background, which Close ends in the order that stands there. Those without one
// are Engine.routines. A driver may hang in the registration of a region (regionWork). Such a goroutine alone outlives
// Close, which names its region.
package engine
