package share

import (
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// The keeper is the goroutine for all work that needs the kernel, so that the data path never enters it. It finds
// entries for devices, and checks ten times a second that the file is still the one behind the name, whole and valid.
// It sleeps while no device is used, so an idle engine costs nothing.
//
//	         joined, devices attached
//	sharing ------------------------------> sharing
//	   |  removed or replaced: part, join the next one at once
//	   |  cut short, overwritten, or no place in the next one: part, tell why
//	   v
//	alone: transfers go on as if there were no other process; tries to join in every round

func (m *Memory) keep(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.woken:
		case <-timer.C:
		}
		if change, cause := m.settle(ctx); change {
			m.told(cause)
		}
		if m.stirred.Swap(false) {
			timer.Reset(round)
			continue
		}
		m.asleep.Store(true)
		if m.stirred.Load() { // it was said while we went to sleep
			m.asleep.Store(false)
			timer.Reset(round)
		}
	}
}

// settle is one round: it brings file and devices to where they should be. It reports whether sharing has begun or
// ended, and why.
func (m *Memory) settle(ctx context.Context) (change bool, cause *errs.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.why
	if m.file != nil {
		if replaced, wrong := m.file.replaced(); wrong != nil {
			m.part(false) // another program has changed it: we do not write to it any more
		} else if replaced {
			m.part(true)
		}
	}
	if m.file == nil {
		m.why = m.join(ctx, keeperWait)
	}
	if m.file != nil {
		m.attach(ctx)
	}
	return (before == nil) != (m.why == nil), m.why
}

// replacedMax bounds the files that an engine leaves: their addresses stay reserved until its end (decision 0214).
const replacedMax = 1024

// join opens the file and takes a row. The caller has m.mu, or is the only one.
func (m *Memory) join(ctx context.Context, most time.Duration) *errs.Error {
	if len(m.reserved) == replacedMax {
		return m.name.unusable("was replaced %d times since this engine was opened", replacedMax)
	}
	f, err := openFile(&m.name)
	if err != nil {
		return err
	}
	if err = f.underTable(ctx, most, f.join); err != nil {
		f.release()
		unreserve(f.base)
		return err
	}
	m.file = f
	return nil
}

// attach finds entries for the devices that have none. A device without room stays alone and tries again in the next
// round.
func (m *Memory) attach(ctx context.Context) {
	for _, d := range m.all() {
		if d.at.Load() != nil {
			continue
		}
		err := m.file.underTable(ctx, keeperWait, func() *errs.Error {
			index, err := m.file.device(d.name)
			if err == nil {
				d.at.Store(&place{base: m.file.base, row: m.file.row, device: index})
			}
			return err
		})
		if err != nil && !d.refused {
			d.refused = true
			m.log.Warn("a device takes no part in shared slots", "device", d.nic, "cause", err.Error())
		}
	}
}

// part leaves the file, if there is one; politely gives the row back at once, else it is given back by its lock. The
// caller has m.mu.
func (m *Memory) part(politely bool) {
	if m.file == nil {
		return
	}
	for _, d := range m.all() {
		d.at.Store(nil)
	}
	if politely {
		_ = m.file.underTable(context.Background(), keeperWait, m.file.leave) // a stopped process may have the table
	}
	m.file.release()
	m.reserved = append(m.reserved, m.file.base)
	m.file = nil
}
