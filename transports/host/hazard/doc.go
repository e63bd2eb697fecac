// Package hazard lets the owner of memory wait for exactly those who touch a region, and lets them touch it for some
// ten nanoseconds of bookkeeping. Processes of one host share it: the copier may be killed or stopped at any
// instruction.
//
// # Who has what
//
// The owner of memory makes one page, a sealed memfd, for each peer that may touch its regions, and hands it to that
// peer. Only the owner writes the permits, only that peer writes the slots:
//
//	            +--------+--------------------------------------+------------------------------+
//	page:       | header | slot 0 | slot 1 | ... | slot 63      | permit of region 0 | 1 | ... |
//	            +--------+--------------------------------------+------------------------------+
//	written by    owner    one copier at a time, 0 when free      owner; 0 while revoked
//
// A slot names the region that is being touched through it: (index, generation). A permit is (generation, epoch): the
// generation changes when the index is given to another region, the epoch with each fence. A slice that was accepted
// under one permit is refused under any other, so what a peer had accepted before a fence cannot land after it.
//
// # The protocol
//
//	copier (View)                                  owner (Table)
//	permit := permits[region]      on acceptance
//	...
//	slot: 0 -> name                one CAS         permits[region] = 0          (revoked)
//	permits[region] == permit?                     for each slot:
//	   no:  slot = 0, refused                         wait while it says name
//	   yes: touch the bytes                        nobody touches the region now
//	        slot = 0                               permits[region] = next epoch (fence), or the region's end
//
// Each side writes its own word and then reads the other's. Were both reads to miss both writes, a copy would go on
// that the owner did not wait for; sequential consistency forbids that, and Go's atomic operations are sequentially
// consistent:
//
//   - amd64: the CAS and the owner's store (XCHG) are locked instructions, full barriers also for what follows them.
//   - arm64: the CAS is CASAL or LDAXR/STLXR, the owner's store STLR, both reads LDAR. A load-acquire is not observed
//     before an earlier store-release, which is all that is needed here, and no plain access moves before the LDAR.
//
// The bytes are touched after the second read of the permit (an acquire) and before the slot is cleared (a release), on
// both. Clearing needs no full barrier, so on amd64 it is a plain store (clear_fast_amd64.s): that halves the price of
// a slot. Whoever copies by non-temporal stores ends them by SFENCE before it leaves, as memmove does.
//
// The owner looks at each slot until it has once said something else: whatever comes into it later has seen the permit.
// So a wait ends although copiers go on with other regions, and one that keeps trying this region gets no second
// chance.
//
// # Death, and worse
//
// A slot of a process that has ended is void: the kernel has taken its memory down, no thread of it runs, nothing will
// be touched. Only the pidfd that was taken when the page was made says so; a pid may be somebody else's by now. The
// same holds when the process has replaced itself by exec: it lives, but no longer maps the page. A process that is
// stopped, or not scheduled, may go on at any time: its slot stays good, the wait ends in time with a *HeldError that
// names process and slot, and the memory must stay as it is (Held says for how long).
//
// A forked child has no page: mappings are not inherited. What a peer writes into its slots is compared and never used
// as an index, the memfd cannot be made shorter: a corrupt or hostile page delays its owner by the bound of a wait, no
// more.
//
// # Numbers
//
// Enter and Leave together: one locked instruction, two loads, two stores; some 10 ns (BenchmarkSlot). A revocation
// scans 64 lines a peer, some microseconds, and sleeps in poll on the pidfd where a copy is under way.
package hazard
