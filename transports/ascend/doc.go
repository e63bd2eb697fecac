// Package ascend is the transport "ascend_direct": memory of Ascend NPUs, and pinned memory of the host, between the
// engines of any hosts. It goes by HIXL, the library of CANN, behind a shim (package hixl).
//
// It was tested with an emulated library alone (tests/fakes/ascend), never on hardware.
//
//	Submit    checks a slice and queues it; the carrier, a thread with the context of the device, posts the most urgent
//	          ones of each link, eight at once, and asks for their ends by one call for all (carrier.go)
//	link      a goroutine for each peer connects and disconnects it, by a few threads with the context (link.go)
//	owner     asks peers that know a region before a fence returns, and before a registration ends (owner.go)
//	instance  the engine of HIXL. One NPU moves the bytes of an engine: transports/ascend_direct/device
//
// # Rules of HIXL, and our answers
//
//	a link sees the registrations of before        a slice for a later region makes the link anew, behind the slices
//	                                               that are out; the rail stays up meanwhile
//	registrations end when no link is there        all peers part, and we do; nobody connects before they have ended
//	registrations do not overlap, some 4096 fit    regions inside of another one share its registration; others are
//	                                               NotHere
//	a request is forgotten with its end            each has one slice, and the carrier never asks again
//	requests cannot be taken back                  Withdraw ends those that wait. A late slice, and Fence, end the link
//	                                               first and the slices afterwards
//	a link is known by its peer alone              two links of ours to one engine have it in turn
//	512 links of a device                          the one that was not used for longest makes room
//	pinned memory of the host alone                other memory of the host is NotHere
//	nothing connects to itself                     package acl's devices are copied inside of a process by loop
//
// # Fences
//
// NPUs of peers reach our memory without asking us. So a fence is heard by the peers' engines, which end the slices of
// before. For a peer that says nothing our own engine of HIXL is finalised, which ends all links, and begins again at
// another port: nothing of before finds the way, and everybody else connects anew. The peer hears the fence with its
// next hello.
//
// An end of a link counts as the end of all that was posted on it, as HIXL says. Where HIXL cannot end a link, its
// engine is finalised, too.
//
// # Trust
//
// HIXL proves nobody: a program that reaches its port can connect, and reach registered memory. Its address is that of
// the control plane, which listens beyond loopback only where security allows that. An engine that demands signed or
// encrypted bytes between hosts leaves this transport out.
//
// # Locks and goroutines
//
//	instance.gate ─▶ instance.mu      around each call of HIXL, and for writing while its engine is exchanged
//	ascend.mu ─▶ guest.mu             the states of links and slices; no call of HIXL or of the sink is made under it
//	instance.gate ─▶ ascend.mu        loseAll, when the engine is exchanged
//	guests.mu, region.mu              leaves
//
// The carrier and the threads of the instance are locked to threads with the device's context, and end in Close. Each
// link has a goroutine from Attach until its farewell, which Close waits for.
//
// # Kept for the process
//
// The libraries, their device files and threads (rule f of package transport).
package ascend
