package control

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tent-engine/tent/gocore/security/synfilter"
)

// crowds lets the kernel keep away most newcomers of networks that flood. Strangers of such a network leave for
// newcomers of the same one, before they were heard or while they wait for their turn. To accept one and to close
// another for it is work for nothing: in a flood that was a quarter of the engine's processor time.
//
//	strangers that leave for their own network: 512 a second ──▶ listed: the kernel drops 15 of 16 SYNs
//	listed, and still 512 ──▶ it drops four times as many          fewer than 128 ──▶ half as many
//	listed, and for 5 s fewer than 128 ──▶ not listed
//
// Other networks wait for nobody: their SYNs pass, and the accept queue has room.
type crowds struct {
	attach func(networks []netip.Prefix, passes uint32) // replaces the filter of all listeners

	mu     sync.Mutex
	at     map[string]*crowd
	passes uint32      // of the SYNs of networks that are listed, one in this number passes
	timer  *time.Timer // while one is listed
	closed bool
}

// crowd is the count of one network.
type crowd struct {
	since  time.Time // the count began
	left   int
	listed time.Time // until then; zero: it is not
}

const (
	crowdLeast = 512 // a thousand engines that start at once stay below
	crowdStill = 128
	crowdSpan  = time.Second
	crowdRest  = 5 * time.Second
	passesMost = 16 // of SYNs one passes, since honest peers of the network send theirs again
	passesLess = 4096
)

func newCrowds() crowds { return crowds{at: map[string]*crowd{}, passes: passesMost} }

// attachTo filters the SYNs of listeners. A kernel or a listener that takes no filter is left as it is: then each
// connection is accepted as before.
func attachTo(listeners []net.Listener) func([]netip.Prefix, uint32) {
	return func(networks []netip.Prefix, passes uint32) {
		for _, l := range listeners {
			if socket, is := l.(syscall.Conn); is {
				_ = synfilter.Attach(socket, networks, passes)
			}
		}
	}
}

// pushed notes that a stranger leaves for a newcomer of its own network. It reports whether the network is listed from
// now on.
func (c *crowds) pushed(network string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.at[network]
	if one == nil {
		if c.closed || !c.room(now) {
			return false
		}
		one = &crowd{since: now}
		c.at[network] = one
	}
	fresh := one.listed.IsZero()
	if fresh && now.Sub(one.since) > crowdSpan {
		one.since, one.left = now, 0
	}
	if one.left++; fresh && one.left >= crowdLeast && !c.closed {
		one.listed, one.since, one.left = now.Add(crowdRest), now, 0
		c.apply()
		return true
	}
	return false
}

// room forgets counts that are old where there are many. The caller holds mu.
func (c *crowds) room(now time.Time) bool {
	if len(c.at) >= synfilter.NetworksMost {
		maps.DeleteFunc(c.at, func(_ string, one *crowd) bool {
			return one.listed.IsZero() && now.Sub(one.since) > crowdSpan
		})
	}
	return len(c.at) < synfilter.NetworksMost
}

// apply gives the list to the kernel, and looks at it again a second later. The caller holds mu.
func (c *crowds) apply() {
	var list []netip.Prefix
	for _, name := range slices.Sorted(maps.Keys(c.at)) {
		if network, err := prefixOf(name); err == nil && !c.at[name].listed.IsZero() {
			list = append(list, network)
		}
	}
	if c.attach != nil {
		c.attach(list, c.passes)
	}
	if len(list) > 0 && c.timer == nil {
		c.timer = time.AfterFunc(crowdSpan, c.look)
	}
}

// prefixOf is the network that networkOf has named.
func prefixOf(name string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(name); err == nil {
		return address.Unmap().Prefix(address.Unmap().BitLen())
	}
	return netip.ParsePrefix(name)
}

// look counts the strangers that have left since the last look, and takes networks off the list that have stopped.
func (c *crowds) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	if c.closed {
		return
	}
	now, most := time.Now(), 0
	for name, one := range c.at {
		if one.listed.IsZero() {
			continue
		}
		if most = max(most, one.left); one.left >= crowdStill {
			one.listed = now.Add(crowdRest)
		}
		if one.since, one.left = now, 0; now.After(one.listed) {
			delete(c.at, name)
		}
	}
	switch {
	case most >= crowdLeast:
		c.passes = min(c.passes*4, passesLess)
	case most < crowdStill:
		c.passes = max(c.passes/2, passesMost)
	}
	c.apply()
}

func (c *crowds) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
}
