package kit

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// upTo returns the numbers from first to last.
func upTo(first, last uint64) (list []uint64) {
	for ; first <= last; first++ {
		list = append(list, first)
	}
	return list
}

// look polls as a waiter that takes all ends, and returns how many there were.
func (d *device) look() int { return d.Poll(100, transport.AllClasses) }

// Short slices are posted in bursts, BurstMost of a class and direction at most. The next burst goes when half of them
// have completed, and not with each one.
func TestShortSlicesAreBegunInBursts(t *testing.T) {
	d := newDevice(t)
	require.Zero(t, d.look())
	d.acceptOf(transport.Write, ShortBytes, upTo(1, 14)...)
	require.Zero(t, d.look())
	d.begin(upTo(1, BurstMost)...)
	d.end(1, 2, 3)
	require.Equal(t, 3, d.look())
	d.begin(upTo(1, BurstMost)...)
	d.end(4)
	require.Equal(t, 1, d.look())
	require.Zero(t, d.look())
	d.begin(upTo(1, 12)...)
	require.Equal(t, []int{BurstMost, 4}, d.bursts)
	d.end(upTo(5, 14)...)
	require.Equal(t, 10, d.look())
	require.Equal(t, []int{BurstMost, 4, 2}, d.bursts)
	require.Equal(t, upTo(1, 14), d.carried)
	d.Arm()
}

// The lanes of a class share a burst, those of two classes never: the more urgent one goes first. A long slice waits
// until its lane has but one, and is alone.
func TestABurstIsOfOneClassAndHasNoLongSlice(t *testing.T) {
	d := newDevice(t)
	require.Zero(t, d.look())
	d.acceptOf(transport.Write, 10, 100, 101)
	d.acceptOf(transport.Read, 10, 102, 103)
	d.accept(transport.Write, 104)
	d.acceptOf(transport.Read, 10, 106)
	d.acceptOf(transport.Write, 10, 105)
	d.acceptOf(transport.Write, 10, 1)
	require.Zero(t, d.look())
	d.begin(1, 100, 101, 102, 103)
	require.Equal(t, []int{1, 4}, d.bursts)
	d.end(100)
	require.Equal(t, 1, d.look())
	require.Zero(t, d.look())
	d.begin(1, 100, 101, 102, 103, 104, 106)
	require.Zero(t, d.look())
	require.Len(t, d.begun, 7, "105 is behind a long one that is under way")
	d.end(101)
	require.Equal(t, 1, d.look())
	require.Zero(t, d.look())
	d.begin(1, 100, 101, 102, 103, 104, 106, 105)
	require.Equal(t, []int{1, 4, 1, 1, 1}, d.bursts)
	d.end(1, 102, 103, 104, 105, 106)
	require.Equal(t, 6, d.look())
	d.Arm()
}

// A slice of a burst that fails at once fails alone. The device is asked about the others only.
func TestASliceOfABurstFailsAlone(t *testing.T) {
	d := newDevice(t)
	require.Zero(t, d.look())
	d.broken[2] = true
	d.acceptOf(transport.Write, 10, 1, 2, 3)
	require.Equal(t, 1, d.look())
	require.Equal(t, errs.Lost, d.ends[2].Err.Code)
	require.Zero(t, d.ends[2].Bytes)
	d.end(1, 3)
	require.Equal(t, 2, d.look())
	require.Nil(t, d.ends[1].Err)
	require.Nil(t, d.ends[3].Err)
	require.NotContains(t, d.seen, uint64(2))
	d.Arm()
}

// Slices of a burst that were not begun yet can be asked back; Evict waits for those that were.
func TestABurstCannotBeAskedBack(t *testing.T) {
	d := newDevice(t)
	require.Zero(t, d.look())
	d.acceptOf(transport.Write, 10, upTo(1, 12)...)
	require.Zero(t, d.look())
	cause := errs.New(errs.Withdrawn, "x", "asked back")
	all := func(*transport.Slice, *bench) bool { return true }
	d.Drop(cause, all)
	for id := range uint64(12) {
		_, over := d.ends[id+1]
		require.Equal(t, id >= BurstMost, over, "slice %d", id+1)
	}
	evicted := make(chan struct{})
	go func() {
		d.Evict(cause, all)
		close(evicted)
	}()
	d.end(upTo(1, BurstMost)...)
	require.Equal(t, BurstMost, d.look())
	<-evicted
	d.Arm()
}

// Bursts are kept for the next ones: nothing is allocated for a slice, and an idle one holds none.
func TestBurstsAllocateNothing(t *testing.T) {
	d := newIdleBench()
	b := &bursting{bench: d}
	require.NoError(t, b.StartPosting(64, b, b.isUp, b.post, b.ask))
	t.Cleanup(b.Stop)
	b.Poll(1, transport.AllClasses)
	list := slicesOf(upTo(1, 32)...)
	round := func() {
		for sent, ends := 0, 0; ends < len(list); ends += b.Poll(16, transport.AllClasses) {
			sent += b.Accept(list[sent:], b.here)
		}
	}
	round()
	require.Zero(t, testing.AllocsPerRun(100, round))
	require.Zero(t, b.posting.count)
	require.True(t, slices.IndexFunc(b.posting.idle, func(x *burst[bench]) bool { return x.entries[0] != nil }) < 0)
	b.Arm()
}

// bursting is a device with free copies that counts nothing.
type bursting struct{ *bench }

func (bursting) Complete([]transport.Completion) {}
func (bursting) Finish() *errs.Error             { return nil }

func (b *bursting) post(list []Beginning[bench]) {
	for i := range list {
		list[i].Rest = b
	}
}

func (*bursting) ask(list []Posted, ends []bool) {
	for i := range list {
		ends[i] = true
	}
}
