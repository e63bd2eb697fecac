package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/metrics"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/share"
)

// sharing is the memory that this engine shares with the other processes of its host: by transport, nil where there is
// none. Transports with one shared_quota_shm_path share one memory. It is fixed by Open.
type sharing []*share.Memory

// openSharing joins the processes that the settings of open transports name. Here every failure is an error; later
// sharing ends with an event, and transfers go on.
func (e *Engine) openSharing(ctx context.Context, undo *steps) error {
	e.shared = make(sharing, len(e.ports))
	for i, p := range e.ports {
		r := e.config.RailOf(p.name)
		if p.transport == nil || r == nil || r.SharedPath == "" {
			continue
		}
		interval := r.SlotInterval
		same := slices.IndexFunc(e.ports[:i], func(q *port) bool {
			return e.shared[q.index] != nil && e.config.RailOf(q.name).SharedPath == r.SharedPath
		})
		if same >= 0 {
			if other := e.config.RailOf(e.ports[same].name).SlotInterval; other != interval {
				return errs.New(errs.InvalidArgument, "shared slots",
					"%s/slot_rotation_interval_ms is %v and %s/slot_rotation_interval_ms is %v, but both share %s",
					e.config.BranchOf(p.name), interval, e.config.BranchOf(e.ports[same].name), other, r.SharedPath)
			}
			e.shared[i] = e.shared[same]
			continue
		}
		m, err := share.Open(ctx, share.Options{Name: r.SharedPath, Branch: e.config.BranchOf(p.name),
			Interval: interval,
			Log:      e.log.With("transport", p.name),
			Told:     func(cause *errs.Error) { e.sharingChanged(p.name, cause) }})
		if err != nil {
			return err
		}
		undo.add(m.Close)
		e.shared[i] = m
	}
	return nil
}

// sharingChanged is called when sharing has ended, or begun again.
func (e *Engine) sharingChanged(transport string, cause *errs.Error) {
	kind := event.SharingOff
	if cause == nil {
		kind = event.SharingOn
	}
	e.announce(&event.Event{Kind: kind, Transport: transport, Err: cause})
}

// neighbours returns the core's view of the other processes on one NIC; nil where nothing is shared.
func (e *Engine) neighbours(transport uint8, device string) qos.Neighbours {
	if m := e.shared[transport]; m != nil {
		return m.Device(e.ports[transport].name, device)
	}
	return nil
}

// close gives up all shared memory. The core runs no more steps.
func (s sharing) close() {
	for i, m := range s {
		if m != nil && !slices.Contains(s[:i], m) {
			m.Close()
		}
	}
}

// view returns the state of sharing of a transport, for metrics.
func (s sharing) view(transport string, i int, now clock.Time) (view metrics.Sharing) {
	if s[i] == nil {
		return view
	}
	v := s[i].View(now)
	view.Processes = v.Processes
	for _, d := range v.Devices {
		if d.Transport == transport {
			view.Devices = append(view.Devices, metrics.SharedDevice{Device: d.NIC, Others: d.Others})
		}
	}
	return view
}

// explain describes it in words, "" where nothing is shared.
func (s sharing) explain(transport string, i int, now clock.Time) string {
	if s[i] == nil {
		return ""
	}
	v := s[i].View(now)
	if v.Cause != nil {
		return "slots and load are not shared at the moment: " + v.Cause.Error()
	}
	text := fmt.Sprintf("slot %d of 0 to 2, %v each; processes that share %s: %d", v.Slot, v.Interval, v.Path,
		v.Processes)
	for _, d := range v.Devices {
		if d.Transport == transport {
			text += fmt.Sprintf("; others have %d bytes in flight on %s", d.Others, d.NIC)
		}
	}
	return text
}
