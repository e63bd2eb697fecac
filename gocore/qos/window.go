package qos

import "time"

// Bounds of LOW bytes in flight.
const (
	lowTime  = 500 * time.Microsecond // of the rate, where something more urgent may come
	calmTime = 4 * time.Millisecond   // and where nothing has for a while
	lowLeast = 16 << 10               // bytes; less would cost more in headers and wake-ups than it saves in waiting
	lowParts = 4                      // slices in a window
)

// CalmAfter is how long nothing more urgent than LOW was wanted on a NIC before it is calm.
const CalmAfter = time.Second

// LowWindow is the number of LOW bytes that may be in flight on a rail or a NIC of a rate. It is its bandwidth-delay
// product for half a millisecond, or for twice its delay where that is more, since a window below one round trip would
// leave it idle. The factor lets the window grow while the rate that was measured is still the window's own. most is
// the rail's window; a quarter of it stays free of LOW.
//
// delay must be that of an empty rail. One that grows with the bytes in flight would make the window grow, and that the
// delay.
//
// The window is kept through pauses of HIGH. Where HIGH is a few percent of the load, nearly each of its requests is
// the first after a pause, and it waits for the bytes that were put in flight during the pause. Only a NIC on which
// nobody has wanted anything more urgent for CalmAfter is calm: LOW has it for itself, and half a millisecond would be
// less than a busy machine takes to answer. The one request that ends the calm waits for up to calmTime. A rate that is
// only assumed makes no NIC calm: on a slow one that would be a long time.
func LowWindow(rate float64, delay time.Duration, calm bool, most uint64) uint64 {
	kept := lowTime
	if calm {
		kept = calmTime
	}
	n := uint64(rate * max(kept, 2*delay).Seconds())
	return min(max(n, lowLeast), most-most/4)
}

// LowSlice is the most bytes of a LOW slice where that window is kept. Four to a window, so that three are on their way
// while the acknowledgement of one is: with two, a rail with a delay of half the window's time would idle between them.
func LowSlice(window uint64) uint64 { return max(window/lowParts, 1) }
