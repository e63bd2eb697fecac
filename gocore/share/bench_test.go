package share

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/tests/forked"
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(Other)) {
		return
	}
	os.Exit(m.Run())
}

// Other is another process that takes part.
type Other struct{}

// Hammer takes part in the file of that name, as fast as it can, from now on.
func (o *Other) Hammer(name string, _ *int) error {
	m, err := Open(context.Background(), optionsOf(name))
	if err != nil {
		return err
	}
	d := m.Device("tcp", "eth0")
	go func() {
		for i := uint64(0); ; i++ {
			slice(d, i, clock.Now())
		}
	}()
	return nil
}

// slice is all that the core does for one slice. Its class is wanted, the slot is asked, the load of the NIC changes
// and is compared with the others'.
func slice(d *Device, i uint64, now clock.Time) bool {
	claim(d, qos.Low, now)
	ok, _ := qos.Slots{Interval: interval, Borrow: true}.May(qos.Low, d, now)
	d.Carries(i%64*65536, now)
	return ok && d.Others(now) > 0
}

// BenchmarkSlice is the time to take part for one slice, with the clock given, as the core has it anyway. The slices of
// a rail of 10 GB/s are 6.5 us apart (64 KiB).
func BenchmarkSlice(b *testing.B) {
	for _, others := range []int{0, 1} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			name := fmt.Sprintf("/tent-bench-%d", os.Getpid())
			m, err := Open(context.Background(), optionsOf(name))
			require.NoError(b, err)
			defer os.Remove(folder + name)
			defer m.Close()
			d := m.Device("tcp", "eth0")
			for range others {
				c, err := forked.Start()
				require.NoError(b, err)
				defer c.Kill()
				require.NoError(b, c.Call("Other.Hammer", name, new(int)))
			}
			now := clock.Now()
			for d.at.Load() == nil || m.View(now).Processes <= others || (d.Others(now) > 0) != (others > 0) {
				now = clock.Now()
			}
			for _, spacing := range []clock.Time{100, 6500} { // ns between slices
				b.Run(fmt.Sprintf("every=%dns", spacing), func(b *testing.B) {
					b.ReportAllocs()
					i := uint64(0)
					for b.Loop() {
						i++
						now += spacing
						slice(d, i, now)
					}
				})
			}
		})
	}
}
