//go:build !invariants

package dispatch

// invariants is false in a normal build: every check is compiled out.
const invariants = false

func (c *Core) checkInvariants() {}
