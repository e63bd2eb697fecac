// Package request holds the terms of a request: how its bytes are to travel, beside where they lie. They are
// declared in the table of package schema, and terms.go is made from it.
//
// The same terms, under the same names, go from every face (objects, Request, RequestArray, C, C++) to the core: packed
// as words across the border, then as Terms, which dispatch.TaskSpec embeds. 0 is "none" for each of them on every face
// and in the core. Ranges are checked once, by Terms.Check, which the engine calls for each new set of terms.
package request

import (
	"math"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

//go:generate go run ./schema/generate

// Due returns the deadline as an instant that can be compared: clock.Never if there is none.
func (t *Terms) Due() clock.Time {
	if t.Deadline == 0 {
		return clock.Never
	}
	return t.Deadline
}

// Choice holds the terms that routes depend on, besides the two regions. It is the key under which a plan is kept.
type Choice struct {
	Policy    uint64
	Require   uint64
	Op        transport.Op
	Hint      uint8
	Intent    Intent
	Integrity Integrity
}

// Set makes the choice that of the terms. It writes field by field, and Of compares so: bytes that are written one by
// one and read as one word a moment later hold the processor up.
func (c *Choice) Set(t *Terms) {
	c.Policy, c.Require = t.Policy, t.Require
	c.Op, c.Hint, c.Intent, c.Integrity = t.Op, t.Hint, t.Intent, t.Integrity
}

// Of reports whether the choice is that of the terms.
func (c *Choice) Of(t *Terms) bool {
	return c.Policy == t.Policy && c.Require == t.Require &&
		c.Op == t.Op && c.Hint == t.Hint && c.Intent == t.Intent && c.Integrity == t.Integrity
}

// Admits reports whether the transport of a number may carry the request.
func (c *Choice) Admits(number uint8) bool { return c.Require == 0 || c.Require&(1<<(number&63)) != 0 }

// unfit is no value of any term that is a byte.
const unfit = math.MaxUint8

// narrow returns a word as a byte; a word that does not fit becomes unfit.
func narrow(w uint64) uint8 { return uint8(min(w, unfit)) }

func outOfRange(name string, value uint64, takes string) *errs.Error {
	orMore := ""
	if value == unfit { // narrow may have made it of a larger one
		orMore = " or more"
	}
	return errs.New(errs.InvalidArgument, "submit", "%s is %d%s: it must be %s", name, value, orMore, takes)
}
