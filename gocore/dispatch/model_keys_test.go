package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// keys are the local keys of the world by number: most work on some rails of their link only. Half of the plans know
// that, as a Matcher would have told; for the others the rail refuses the slice.
type keys struct {
	random *rand.Rand
	there  *rand.Rand // of the peer's ends
	rails  []uint64   // by key, a bit each; 0: all
	known  []bool     // plans say so
	w      *world
}

func newKeys(seed uint64, w *world) *keys {
	return &keys{random: rand.New(rand.NewPCG(seed, 3)), there: rand.New(rand.NewPCG(seed, 6)), rails: []uint64{0},
		known: []bool{true}, w: w}
}

// give makes a key for some hops.
func (k *keys) give(hop *plan.Hop, rails int) {
	if k.random.IntN(3) > 0 {
		return
	}
	mask := 1 + k.random.Uint64N(1<<rails-1)
	known := k.random.IntN(2) == 0
	hop.LocalKey = transport.LocalKey(len(k.rails))
	k.rails, k.known = append(k.rails, mask), append(k.known, known)
	if known {
		hop.Rails = mask
	}
	if k.random.IntN(2) == 0 {
		hop.Near = []uint8{uint8(k.random.IntN(3)), uint8(k.random.IntN(3))}
	}
	if k.there.IntN(2) == 0 {
		hop.There = []uint8{uint8(k.there.IntN(3)), uint8(k.there.IntN(3))}
	}
}

// refuses reports whether the keys of a slice do not work on its rail, and completes it then. A plan that knew it is an
// error.
func (k *keys) refuses(q *posted, after time.Duration) bool {
	mask := k.rails[q.slice.LocalKey]
	if mask == 0 || mask>>q.slice.Rail.Index&1 != 0 {
		return false
	}
	if k.known[q.slice.LocalKey] {
		k.w.check.fail("a slice on rail %d, where its keys do not work", q.slice.Rail.Index)
	}
	k.w.check.seen["refused key"]++
	k.w.complete(q, errs.New(errs.NotHere, "sim", "the key does not work here").
		WithScope(errs.ScopeRail, errs.SideLocal), after)
	return true
}
