// Package faulty puts faults into any transport and into the control plane. It has one small language that is the same
// from Go, from Python and in the environment variable TENT_FAULTS.
//
//	plan, err := faulty.New("rail=1 blackhole after_bytes=8MiB; seed=7")
//	factory := faulty.Wrap(tcp.Factory{}, plan)   // give this to the engine
//	...
//	err = plan.Apply("rail=0 delay=2ms")          // while it runs
//	err = plan.Apply("heal")                      // everything works again
//
// # Language
//
// Statements end with a semicolon or a line; # begins a comment. A statement is words in any order: selectors say which
// slices are meant (all, if there is none), one or more faults are applied to them, parameters say how.
//
//	selectors   transport=tcp  peer=10.0.0.5:41233  rail=1  op=READ|WRITE  class=0        (each also =*)
//	            nth=5                       only the fifth of those slices
//	            every=10                    every tenth of them
//	seed's      submit_fail_rate=0.3        a slice is refused at submission
//	faults      status_corrupt_rate=0.1     a slice is delivered, and reported as failed
//	            fail_after_n_submits=5      the first five slices pass, all others are refused
//	            fail_install                the transport does not open
//	slices'     reject                      the slice fails at once and nothing is sent
//	faults      lose                        the slice is delivered, and reported as failed
//	            drop                        the slice is lost on its way: nothing arrives, nothing comes back
//	            drop_completion             delivered, and nothing comes back
//	            delay=2ms                   delivered, and the completion comes so much later
//	            duplicate                   delivered twice; the completion comes after both
//	            reorder=3                   its completion comes behind the next three of its rail, or after 10 ms
//	            truncate                    half of it is delivered, and it is reported as failed
//	            corrupt                     a byte of it changes on its way, without a word
//	            short                       Submit stops before this slice; Ready follows
//	rails'      blackhole                   from here on nothing is sent and nothing comes back
//	faults      slow=10MiB                  the rail carries that number of bytes a second
//	            down                        the rail goes down at once and stays down
//	            reset                       the rail goes down at once, and comes back as fast as it can
//	others'     fail_register  fail_attach  Register, Attach fail
//	            fail_sync                   a file's bytes are there, but not on stable storage
//	faults      control_down                calls to the peer over the control plane fail, open connections break
//	parameters  rate=0.1  after_bytes=8MiB  after_slices=100  count=3
//	            code=LOST  scope=slice|rail|link|transport  side=local|remote|path  collateral
//	            ambient                     it belongs to the stage of a test and not to its subject: it is counted
//	                                        apart, not logged, and ended by heal ambient alone
//	            unused_ok                   a test kit does not complain if it never strikes; see Plan.Struck
//	            silent                      blackhole, drop, drop_completion: not even a withdrawal is answered;
//	                                        truncate: reported as delivered; control_down: calls hang
//	others      seed=7   heal
//
// The first four are those of the failover seed's FaultProxyTransport, with slices for its submits; they fail with
// the scope of the link, so the engine goes to the next route, the others with that of the rail. heal ends the faults
// with the selectors that it names, all without selectors: held slices are delivered, swallowed ones reported as
// lost. down and reset take the selectors transport=, peer= and rail=, and of the parameters ambient and unused_ok.
// For fail_register, fail_attach, fail_sync and control_down the parameters count calls, and peer= is the address that
// is called.
//
// A slice meets one fault on its way out (of several that fit, the first in: reject, short, blackhole, drop, truncate,
// duplicate) and, if it was sent as it is, one on its way back (blackhole, drop_completion, lose, corrupt, delay,
// reorder, slow).
//
// # Promises
//
// A faulty transport keeps the contract, but for truncate silent and corrupt: each accepted slice completes exactly
// once, and after its completion it is quiet. So a completion is flipped only when the real one has arrived, a slice
// that was swallowed was never sent and never is, and one that is sent twice completes after both. A slice that waits
// in a black hole or for its turn on a slowed rail is given back as errs.Withdrawn when the engine asks for it. Probes
// of a rail fare as its slices would, and nothing is carried out inline while a fault may meet it. Without a fault
// nothing is looked at: the cost is one or two atomic loads a call.
//
// A checked slice that is corrupted completes with errs.Corrupted and nothing else happens to it: that checksums find
// the changes are tested where they are made (tests/go, transports/tcp), here their consequences are. Bytes of
// devices cannot be changed from here, so corrupt passes over them.
package faulty
