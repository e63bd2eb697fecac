// Package hazard lets the owner of memory wait for exactly those processes that touch a region. Touching costs them
// some ten nanoseconds of bookkeeping. Processes of one host share it: the copier may be killed or stopped at any
// instruction.
//
// # The page
//
// The owner of memory makes one page, a sealed memfd, for each peer that may touch its regions, and hands it to that
// peer. Only the owner writes the permits, only that peer writes the slots:
//
//	            +--------+--------------------------------------+------------------------------+
//	page:       | header | slot 0 | slot 1 | ... | slot 63      | permit of region 0 | 1 | ... |
//	            +--------+--------------------------------------+------------------------------+
//	written by    owner    one copier at a time, 0 when free      owner; 0 while revoked
//
// A slot names the region that is being touched through it: (index, generation). A permit is (generation, turn): the
// generation changes when the index is given to another region, the turn with each revocation. Behind it stands the
// floor, the epoch of the region's last fence: a slice of an older task is refused.
//
// layout.go has the words of a page, table.go and page.go the owner's side, view.go the copier's.
//
// # The protocol
//
//	copier (View)                                  owner (Table)
//	permit := permits[region]
//	floor <= epoch of the task?
//	slot: 0 -> name                one CAS         permits[region] = 0          (revoked)
//	permits[region] == permit?                     for each slot:
//	   no:  slot = 0, refused                         wait while it says name
//	   yes: touch the bytes                        nobody touches the region now
//	        slot = 0                               floor = epoch; permits[region] = next turn (fence)
//
// # Memory model
//
// Each side writes its own word and then reads the other's. If both reads missed both writes, a copy would go on that
// the owner did not wait for (Dekker's store-buffer pattern). Sequential consistency of the four accesses forbids that.
// The Go memory model (go.dev/ref/mem) promises it for atomic operations inside one program. Between two processes the
// argument rests on the instructions that Go emits, on the same cacheable page that both map, with words that are
// aligned to eight bytes and so read and written whole:
//
//   - amd64 reorders only a store with a later load. The copier's CAS (LOCK CMPXCHG) and the owner's store (XCHG) are
//     locked instructions, hence full barriers before the load that follows each.
//   - arm64: the copier's CAS is CASAL, or LDAXR and STLXR; the owner's store is STLR; both loads are LDAR. Arm's
//     release and acquire are RCsc: an LDAR is never observed before an earlier store-release of its own processor, and
//     the CAS that succeeded ends in one. That is the only order that the argument needs.
//
// The compiler moves no memory access across a call of sync/atomic. The bytes are touched after the second load of the
// permit and before the slot is cleared. On arm64 that load is an acquire (nothing later moves in front of it) and the
// clearing a release, STLR (nothing earlier moves behind it); the owner sees the cleared slot by LDAR, so its own
// accesses come after the copier's. On amd64 loads and stores have that order anyway, so clearing is a plain store
// (clear_fast_amd64.s), which halves the price of a slot. Non-temporal stores of amd64 are the exception: a copier that
// uses them ends them by SFENCE before it leaves, as memmove does.
//
// The owner looks at each slot until it has once said something else: a later entry has seen the permit.
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
// A forked child has no page: mappings are not inherited. A word that a peer writes into its slots is compared and
// never used as an index, the memfd cannot be made shorter: a corrupt or hostile page delays its owner by the bound of
// a wait, no more. So it is with the page of a hostile owner: permits refuse, and slots that stay taken end a wait.
//
// # Numbers
//
// Enter and Leave together: one locked instruction, two loads, two stores; some 10 ns (BenchmarkSlot). A revocation
// scans 64 lines a peer, some microseconds, and sleeps in poll on the pidfd where a copy is under way.
package hazard
