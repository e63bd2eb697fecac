package sim

import (
	"testing"

	"github.com/tent-engine/tent/gocore/transport"
)

// BenchmarkSlices is the cost of simulating: 64 slices of 4 KiB through their events, answers included.
func BenchmarkSlices(b *testing.B) {
	d := newDuet(b, 1, 1, Shape{Rate: 1e9, Delay: 20_000, Jitter: 5_000})
	list := d.writes(64, 4096)
	d.a.t.sink = silent{d.a}
	b.SetBytes(64 * 4096)
	b.ReportAllocs()
	for b.Loop() {
		if d.a.t.Submit(list) != len(list) {
			b.Fatal("an idle rail refuses")
		}
		d.idle()
	}
}

// silent keeps no journal.
type silent struct{ *engine }

func (silent) Complete([]transport.Completion) {}
