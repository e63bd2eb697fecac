// Package transporttest is the conformance suite of transports: one test a rule of gocore/transport, run by every
// transport there is. What it covers, a transport does not test again.
//
// # Add a transport
//
//  1. Make a folder transports/x, with a package x that imports gocore's vocabulary (errs, mem, clock, event, config) and
//     gocore/transport, its third-party library, and nothing else of tent.
//
//  2. Write a Factory whose Check says in one sentence why it cannot work here ("x: no device: /sys/class/x is empty"),
//     and whose Open takes the package's own Settings.
//
//  3. Write the Transport. Read the rules at the top of gocore/transport first; the sharp one is c: a completion is a
//     promise that nobody touches the bytes any more. If that cannot be proved yet, the completion comes later.
//
//  4. Add one line to transports/all.
//
//  5. Add one test file:
//
//     func TestConformance(t *testing.T) {
//     transporttest.Run(t, transporttest.Harness{
//     Check: x.Factory{}.Check,
//     Open: func(t *testing.T, c transporttest.Config) transport.Transport {
//     tr, err := x.Factory{}.Open(t.Context(), settings(c.Rails), c.Host, c.Sink)
//     require.NoError(t, err)
//     return tr
//     },
//     })
//     }
//
// Then go test ./transports/x, also with -race. Nothing in gocore has to change; if it seems to, the contract is wrong
// and that is worth an issue.
//
// # What the suite brings
//
// It opens several engines' worth of the transport in one process and stands in for their engines: a Host that routes
// calls between them, a Sink that records, memories with guard bands whose bytes depend on their position. A test never
// sleeps; it waits for something to be recorded, and fails with all goroutines' stacks when that takes too long.
// Whatever the test, at its end each accepted slice must have completed exactly once, guard bands must be whole, and
// after Close neither a goroutine nor a file descriptor may be left.
//
// What a transport cannot do is skipped by name: optional interfaces that it lacks, and the abilities that its Harness
// does not offer (Hold, CutRail, Blackhole, which need a hand inside the transport or the system below it). Run logs
// the list of what was skipped and why. A random test prints TENT_TEST_SEED when it fails; setting it repeats the run.
//
// The suite is tested itself: TestTheSuiteFindsBrokenTransports runs it over transports that break one rule each.
//
// # What it takes for granted beyond the letter of the contract
//
//   - A rail that was fenced, or broke, and whose ends are healthy comes back by itself with a higher generation.
//   - A slice that Withdraw asked for ends with no error or with errs.Withdrawn; Fence may also give errs.Lost.
//   - What Revoke cuts off fails with a permanent code (PermissionDenied, AddressNotRegistered or Stale) and the scope
//     of the slice: a retry would carry out after the fence what began before it.
//   - Attach to an address where nobody answers ends in LinkDown within the dial's limit.
//   - Detach completes what is outstanding, as Close does, and before it returns where that can be proved.
package transporttest
