package rail

// HealthMax is the health of a rail that nothing is held against.
const HealthMax = 1000

// Health is the value of the LNet seed: 0 to HealthMax, lowered by each failure, raised by each success. It orders
// rails that all work; whether one is used at all is the Breaker's matter. The zero value is full health.
type Health struct{ missing int }

// Value is 0 to HealthMax.
func (h *Health) Value() int { return HealthMax - h.missing }

// Lower notes a failure.
func (h *Health) Lower(by int) { h.missing = min(h.missing+by, HealthMax) }

// Raise notes a success and reports whether it brought the rail into a better band.
func (h *Health) Raise(by, step int) bool {
	if h.missing == 0 {
		return false // the common case costs a comparison
	}
	before := h.Band(step)
	h.missing = max(h.missing-by, 0)
	return h.Band(step) < before
}

// Band is the value that the choice compares, 0 is best: rails are equals if their health is in one step. The step is
// the LNet seed's health_value_range, and one more: a range of 0 compares each point.
func (h *Health) Band(step int) int { return h.missing / step }

// Stuck is the place of a slice when it was given up: the LNet seed's three scenarios of a time-out.
type Stuck uint8

// Scenarios.
const (
	NotPosted       Stuck = iota + 1 // it never left our end
	NotTransmitted                   // it was handed over, and nobody knows how far it came
	NotAcknowledged                  // it left, and the other end said nothing
)

// Demerits returns the ends that lose health by such a failure: ours, both of the path, or the other one.
func (s Stuck) Demerits() (local, remote bool) {
	return s != NotAcknowledged, s != NotPosted
}

// MayLeave reports whether one more of a peer's rails may be taken out on a soft signal, silence. At most a share of
// them all may be out, and never the last. Some rule must hold for few rails, so one of two may always go.
func MayLeave(out, total int, share float64) bool {
	return out+1 < total && out < max(1, int(share*float64(total)))
}
