package rail

import "time"

const (
	// paceWindow is the time on a full rail over which its rate is judged.
	paceWindow = time.Second
	// A rail is slow below slowBelow of the expected rate, and not any more at slowUntil of it.
	slowBelow = 0.5
	slowUntil = 0.75
	// paceMemory is the number of windows over which the usual rate follows a lower one.
	paceMemory = 600
)

// Pace notices a rail that carries far less than it should although work waits for it. It expects the higher one of two
// rates: the nominal one of the NIC, and the usual one, which is the best of its windows and fades over ten minutes.
//
// Only time in which the rail was full with its whole window counts (Meter.TakeFull): a rail with little to do is not
// slow. Rails that share a NIC share its rate, so time counts by the rail's share of the bytes in flight there.
type Pace struct {
	nominal float64 // bytes/s, 0 if unknown
	usual   float64 // bytes/s, 0 before the first window
	rate    float64 // bytes/s of the last window, as if the rail had its NIC for itself
	slow    bool

	bytes  float64 // in the window
	shared float64 // ns of it, by share
	time   time.Duration
}

// Reset starts anew with the NIC's nominal rate in bytes/s, 0 if it is not known.
func (p *Pace) Reset(nominal float64) { *p = Pace{nominal: max(nominal, 0)} }

// See adds a sample of a full rail: its bytes, its share of the NIC from above 0 to 1, and its length. It reports
// whether the rail has become slow, or has stopped to be.
func (p *Pace) See(bytes uint64, share float64, took time.Duration) (changed bool) {
	p.bytes += float64(bytes)
	p.shared += share * float64(took)
	p.time += took
	if p.time < paceWindow || p.shared <= 0 {
		return false
	}
	p.rate = p.bytes / p.shared * 1e9
	was, expected := p.slow, p.Expected()
	if p.slow {
		p.slow = p.rate < slowUntil*expected
	} else {
		p.slow = p.rate < slowBelow*expected
	}
	p.usual = max(p.rate, p.usual-(p.usual-p.rate)/paceMemory)
	p.bytes, p.shared, p.time = 0, 0, 0
	return p.slow != was
}

// Slow reports whether the rail is slow.
func (p *Pace) Slow() bool { return p.slow }

// Rate is that of the last window in bytes/s, as if the rail had its NIC for itself.
func (p *Pace) Rate() float64 { return p.rate }

// Expected is the rate that a full rail should have in bytes/s, 0 if nothing is known of it.
func (p *Pace) Expected() float64 { return max(p.nominal, p.usual) }

// ByNominal reports whether the expectation is the NIC's nominal rate, and not an earlier one of the rail.
func (p *Pace) ByNominal() bool { return p.nominal >= p.usual }
