// Package faulty puts faults into any transport, by one small language that is the same from Go, from Python and in the
// environment variable TENT_FAULTS.
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
// slices are meant (all, if there is none), one or more faults say what happens to them, parameters say how.
//
//	selectors   transport=tcp  peer=10.0.0.5:41233  rail=1  op=READ|WRITE  class=0        (each also =*)
//	seed's      submit_fail_rate=0.3        a slice is refused at submission
//	faults      status_corrupt_rate=0.1     a slice is delivered, and reported as failed
//	            fail_after_n_submits=5      the first five slices pass, all others are refused
//	            fail_install                the transport does not open
//	rails'      reject                      the slice fails at once and nothing is sent
//	faults      lose                        the slice is delivered, and reported as failed
//	            blackhole                   from here on nothing is sent and nothing comes back
//	            drop_completion             delivered, and nothing comes back
//	            delay=2ms                   the completion comes so much later
//	            short                       Submit stops before this slice; Ready follows
//	            down                        the rail goes down and stays down
//	parameters  rate=0.1  after_bytes=8MiB  after_slices=100  count=3
//	            code=LOST  scope=slice|rail|link|transport  side=local|remote|path  collateral
//	            silent                      blackhole, drop_completion: not even a withdrawal is answered
//	others      seed=7   heal
//
// The first four are those of the failover seed's FaultProxyTransport, whose submits are slices here; they fail with the
// scope of the link, so the engine goes to the next route, the others with that of the rail. heal ends the faults whose
// selectors it names, all without selectors: what was swallowed is sent after all, what was held back is delivered.
//
// # What it keeps
//
// A faulty transport keeps the contract: each accepted slice completes exactly once, and after its completion it is
// quiet. So a completion is flipped only when the real one has arrived, and what was swallowed was never sent. A slice
// that waits in a black hole is given back as errs.Withdrawn when the engine asks for it. Without a fault nothing is
// looked at: the cost is one atomic load a call.
package faulty
