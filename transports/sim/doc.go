// Package sim is a simulated network: transports that really copy bytes between registered memories. They do so in
// virtual time and with every fault that a network has. With one goroutine and one seed a run repeats exactly, so a day
// of flapping rails is a unit test.
//
//	n := sim.New(seed)                                       // nothing moves by itself
//	n.Shape(sim.Anywhere, sim.Shape{Rate: 1e9, Delay: 50 * time.Microsecond, Loss: 0.001})
//	a, err := sim.Factory{Settings: sim.Settings{Network: n, Rails: 2}}.Open(ctx, nil, hostA, sinkA)
//	b, err := sim.Factory{Settings: sim.Settings{Network: n, Rails: 2}}.Open(ctx, nil, hostB, sinkB)
//	link, err := a.Attach(hostB.Self())                      // hosts give nothing but Self
//	for next := n.NextEvent(); next < end; next = n.NextEvent() {
//		n.Advance(next)                                      // sinks are called from here
//	}
//	n.Cut(sim.Between("a:1", "b:1").On(1))                   // silence; n.Heal ends it
//	n.Stop("b:1"); n.Continue("b:1"); n.Kill("b:1")          // processes
//
// NewInline is the same without a driver: each call carries out all that follows from it.
//
// # Model
//
// A link has rails; each has a wire that carries one slice after the other at a rate, the highest class first, a delay
// and a jitter. A slice may get lost, be delivered and reported as lost, land twice, or complete late: Shape. The bytes
// are copied at the moment of landing, and for a READ the peer's memory is read at that moment, so a source that is
// used again too early, or a destination that is written too late, shows as wrong bytes. Under any faults the
// contract holds: a slice completes exactly once and nothing of it lands afterwards. The second landing of a duplicate
// comes before the completion; slices that a cut rail holds may land when it is healed, unless a withdrawal was first.
//
// Transports with Settings.Files move bytes to and from the network's Disk: a file's links and rails are wires like
// others, Disk.Hold keeps syncs waiting, Disk.Crash takes back unsynced bytes.
//
// The owner's side is checked where the bytes land: key, range, permission, and the epoch of the slice's task. Memory
// of devices is memory of the host with another kind; Settings.Pairs names the memories that a transport may touch, and
// a planner that gets it wrong is refused. Settings.Executor makes the remote hop of a route with several.
//
// # Limits
//
// There are no sockets, no congestion and no sharing of a wire between links; Host.Call is not used. Virtual time has
// nothing to do with gocore/clock.Now.
package sim
