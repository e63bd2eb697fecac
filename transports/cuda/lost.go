package cuda

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

// A device that a sticky error has ended fails each later call in this process (package driver). The one rail of a link
// serves all devices, so it comes up again in the next generation, without the lost one: plans are made again then, and
// Match leaves its memory out. Tasks with a plan of before take their next route at the first slice.

// lostBetween returns the end of a device that bytes between two regions need, nil while all of them work.
func lostBetween(local *region, from *imported) *errs.Error {
	if from.mapping != nil {
		return driver.Lost(from.copier(local))
	}
	if cause := driver.Lost(local.ordinal); cause != nil {
		return cause
	}
	return driver.Lost(from.ordinal)
}

// lose makes the end of a slice from that of a device. The first one of a device goes into the log, and renews each
// link.
func (t *copier) lose(cause *errs.Error) *errs.Error {
	own := *cause // the driver keeps it
	end := (&own).WithScope(errs.ScopeLink, errs.SideLocal)
	if _, told := t.lost.LoadOrStore(cause, nil); !told {
		t.host.Log().Error("a device is lost", "err", cause)
		for _, l := range t.links.All() {
			l.Renew(end)
		}
	}
	return end
}
