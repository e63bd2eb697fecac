// Package plugin opens transports that come as shared libraries, by the C interface of include/tent_transport.h. The
// engine sees a transport like any other: its name, settings, rails, hints and metrics are a built-in's.
//
//	Load ── files and folders of the setting "plugins": owner, mode, whole
//	   └── library ── table of functions, checked and copied; settings declared at run time
//	         └── Factory ── Check, Open
//	               └── port ── Register Attach Submit ... ──▶ calls.c ──▶ the plug-in
//	                      ▲      options.go, files.go: optional interfaces     │
//	                      └── Poll, the drainer ◀── bounded queues, port.c ◀───┘ its threads
//
// loader and library open files, convert copies errors and regions for C, and info reads a plug-in's account of itself.
// slices has those that it has accepted, reports its news, and platform the devices that it may bring.
//
// # No callback into Go
//
// A plug-in's thread never runs Go. Its reports are copied into queues (port.c), and an eventfd wakes the drainer, a
// goroutine; waiters read the ends of slices from memory of C. Ends need no bound of their own: a slot of the slab ends
// once.
//
// # Locks and goroutines
//
//	port.draining ─▶ flights.mu       one goroutine takes ends out; the sink is called under draining
//	port.gate                         held for reading around each call of the plug-in; Close takes it for good
//	a door's lock in C                guards its port; leaves
//
// The drainer ends behind the plug-in's close, and a call to a peer with its limit or with Close.
//
// # Trust
//
// A plug-in is code in this process, so it can do everything. tent survives its mistakes as far as memory allows:
// slices that end twice, late, or never were, reports without sense, tables with holes. Each is a breach. It is logged
// with the file's name, and after the third the plug-in takes nothing any more and its links go down. No library is
// ever unloaded.
//
// Regions that are given to certain peers only do not go over plug-ins: they cannot ask for identities.
//
// # Cost
//
// A batch of 64 slices crosses once to submit, and once to poll where the plug-in works there. Each slice is copied to
// the slab. BenchmarkPlugIn measures the cost of a slice beside the transport that is built in: 55 ns more for one by
// itself, 25 ns less for one of 64. The bound is 60 ns, without allocations.
package plugin
