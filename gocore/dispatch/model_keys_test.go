package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// keys are the local keys of the world by number. Most work on some rails of their link only, and on others when the
// peer has replaced its key. Half of the plans know them, as a Matcher would have told; for the others the rail refuses
// the slice.
type keys struct {
	random *rand.Rand
	seed   uint64
	places []keyPlace // by key
	w      *world
}

// keyPlace is the link of a local key, with the number of its rails; 0: the key works everywhere.
type keyPlace struct {
	link  plan.LinkID
	rails int
}

func newKeys(seed uint64, w *world) *keys {
	return &keys{random: rand.New(rand.NewPCG(seed, 3)), seed: seed, places: make([]keyPlace, 1), w: w}
}

// give makes a key for some hops.
func (k *keys) give(hop *plan.Hop, rails int) {
	if k.random.IntN(3) > 0 {
		return
	}
	hop.LocalKey = transport.LocalKey(len(k.places))
	k.places = append(k.places, keyPlace{hop.Link, rails})
	m := k.match(hop.LocalKey, hop.RemoteKey)
	hop.Rails, hop.Near, hop.There = m.Rails, m.Near, m.There
}

// works returns the rails on which a pair of keys works, 0 for all, and whether a Matcher says so.
func (k *keys) works(here transport.LocalKey, there transport.RemoteKey) (mask uint64, known bool, r *rand.Rand) {
	r = rand.New(rand.NewPCG(k.seed<<32|uint64(here), uint64(there)))
	if n := k.places[here].rails; n > 0 {
		mask = 1 + r.Uint64N(1<<n-1)
	}
	return mask, r.IntN(2) == 0, r
}

func (k *keys) match(here transport.LocalKey, there transport.RemoteKey) (m transport.Match) {
	mask, known, r := k.works(here, there)
	if known {
		m.Rails = mask
	}
	if r.IntN(2) == 0 {
		m.Near = []uint8{uint8(r.IntN(3)), uint8(r.IntN(3))}
	}
	if r.IntN(2) == 0 {
		m.There = []uint8{uint8(r.IntN(3)), uint8(r.IntN(3))}
	}
	return m
}

// matches are those of a peer's new key on a link.
func (k *keys) matches(id plan.LinkID, there transport.RemoteKey) plan.Matches {
	if k == nil {
		return nil
	}
	m := plan.Matches{}
	for here, at := range k.places {
		if at.link == id {
			m[transport.LocalKey(here)] = k.match(transport.LocalKey(here), there)
		}
	}
	return m
}

// refuses reports whether the keys of a slice do not work on its rail, and completes it then. A plan that knew it is an
// error.
func (k *keys) refuses(q *posted, after time.Duration) bool {
	mask, known, _ := k.works(q.slice.LocalKey, q.slice.RemoteKey)
	if mask == 0 || mask>>q.slice.Rail.Index&1 != 0 {
		return false
	}
	if known {
		k.w.check.fail("a slice on rail %d, where its keys do not work", q.slice.Rail.Index)
	}
	k.w.check.seen["refused key"]++
	k.w.complete(q, errs.New(errs.NotHere, "sim", "the key does not work here").
		WithScope(errs.ScopeRail, errs.SideLocal), after)
	return true
}
