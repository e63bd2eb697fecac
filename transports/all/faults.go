package all

import (
	"sync"

	"github.com/tent-engine/tent/transports/faulty"
)

// faults is the process's plan of injected faults. There is none unless TENT_FAULTS is set or Faults was called, and then
// transports are exactly what their factories open.
var faults process

type process struct {
	mu   sync.Mutex
	read bool // the environment was read
	plan *faulty.Plan
	err  error
}

// current is the plan of now, nil without faults. A mistake in TENT_FAULTS is an error of every Open.
func (p *process) current() (*faulty.Plan, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.read {
		p.read = true
		p.plan, p.err = faulty.FromEnvironment()
	}
	return p.plan, p.err
}

// Faults applies a text in the language of transports/faulty to the transports of this process: those opened from now
// on, and those opened since its first call or under TENT_FAULTS. Call it with "" before the engine opens to be able to
// inject faults later. Any goroutine may call it.
func Faults(text string) error {
	if _, err := faults.current(); err != nil {
		return err
	}
	faults.mu.Lock()
	defer faults.mu.Unlock()
	if faults.plan == nil {
		plan, err := faulty.New("")
		if err != nil {
			return err
		}
		faults.plan = plan
	}
	return faults.plan.Apply(text)
}
