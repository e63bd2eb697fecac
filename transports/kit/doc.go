// Package kit holds the parts that every transport needs and none should write again. It contains no transport, and it
// imports the vocabulary and the contract only.
//
//	Slots        keys of regions, open files and the like: index and generation, looked up without a lock
//	Keys         random keys that nobody can guess, for names that travel; looked up in the same way
//	Links        Slots for links; it counts the calls that name one that has ended
//	ClassQueue   slices that wait, a list for each class, and List for other queues of slab entries
//	Reader       takes fields out of a message; AppendText and encoding/binary write one
//	Executor     carries accepted slices out: on a worker, or on waiters that poll (executor.go). Those of a device are
//	             posted, and asked about (posting.go), short ones several at a time (burst.go)
//	OneRail      the life of a link with one rail: its greeting, its generations, its end
//	Door         which peers may still touch a region; Passage is the same for one of them
//	Lifecycle    open, closed, ended; calls that must not begin after Close begin under it
//	checks.go    the conditions on a slice and a region, and the errors where they do not hold
//
// A transport takes the parts that it wants. Package loop takes nearly all of them and is the example to copy.
package kit
