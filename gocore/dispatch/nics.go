package dispatch

import "github.com/tent-engine/tent/gocore/transport"

// Policies may name the local NICs that carry a request (plan.Plan.Devices). Rails of other NICs then leave its tasks
// alone, and take others that wait behind them, as they do for memory of another node (numa.go). When no rail of a
// named NIC can be used, by failure or because there is none, every rail may: nobody is to see FAILED while a path is
// left. Upstream's masks fail open in the same way.

// nicsOf returns the bits of Options.Devices that mean the local end of a rail, by the NIC's name or by the end's.
func (c *Core) nicsOf(info *transport.RailInfo) (bits uint64) {
	for i, name := range c.options.Devices {
		if name != "" && (name == info.Device || name == info.Local) {
			bits |= 1 << i
		}
	}
	return bits
}

// named reports whether a mask of NICs keeps some rails of the link away.
func (l *link) named(devices uint64) bool { return l.nics&devices != 0 }
