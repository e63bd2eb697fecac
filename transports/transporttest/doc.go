// Package transporttest is the conformance suite of transports: one test a rule of gocore/transport, run by every
// transport there is. A transport tests only properties that it does not cover.
//
// # Add a transport
//
//  1. Make a folder transports/x, with a package x that imports gocore's vocabulary (errs, mem, clock, event, config)
//     and gocore/transport, its third-party library, and nothing else of tent.
//
//  2. Write a Factory: its Check says in one sentence why it cannot work here ("x: no device: /sys/class/x is empty"),
//     and its Open takes the package's own Settings.
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
// # The suite's world
//
// It opens several engines' worth of the transport in one process and stands in for their engines: a Host that routes
// calls between them, a Sink that records, memories with guard bands and bytes that depend on their position. A test
// never sleeps; it waits for something to be recorded, and fails with all goroutines' stacks when that takes too long.
// At the end of each test every accepted slice must have completed exactly once, guard bands must be whole, and after
// Close neither a goroutine nor a file descriptor may be left.
//
// Abilities that a transport lacks are skipped by name: optional interfaces that it lacks, and the abilities that its
// Harness does not offer (Hold, CutRail, Blackhole, which need a hand inside the transport or the system below it). Run
// logs the list of skipped rules and reasons. A random test prints TENT_TEST_SEED when it fails; setting it repeats the
// run.
//
// A variant of a transport that Run has seen whole, on another memory or path, is tested by Again. It repeats the rules
// that depend on the way of the bytes; TENT_CONFORMANCE=all, which `make test-all` sets, repeats all of them. Another
// way of a transport, with ends and faults of its own, is tested by Beside, which repeats less under the race detector.
//
// The suite is tested itself: TestTheSuiteFindsBrokenTransports runs it over broken transports, and wants one for each
// rule. A new rule comes with its own, see mutants.
//
// # Assumptions beyond the letter of the contract
//
//   - A rail that was fenced, or broke, between healthy ends comes back by itself with a higher generation.
//   - A slice that Withdraw asked for ends with no error or with errs.Withdrawn; Fence may also give errs.Lost.
//   - A slice that Revoke cuts off fails with a permanent code (PermissionDenied, AddressNotRegistered or Stale) and
//     the scope of the slice: a retry would carry out a transfer after the fence that began before it.
//   - Attach to an address where nobody answers ends in LinkDown within the dial's limit. The link goes on asking, so
//     that the end of a process that was silent is LinkDown again, with the proof.
//   - Detach completes outstanding slices, as Close does, and before it returns where that can be proved.
package transporttest
