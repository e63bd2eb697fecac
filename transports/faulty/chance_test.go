package faulty

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

// pattern sends slices one after the other, and returns which of them did not fail.
func (b *bench) pattern(t *testing.T, rail transport.Rail, n int, between func(i int)) (fine []bool) {
	t.Helper()
	for i, s := range b.slices(rail, n) {
		between(i)
		require.Equal(t, 1, b.c.Send(s))
		fine = append(fine, b.c.Wait(t, s)[0].Err == nil)
	}
	return fine
}

func nothing(int) {}

// TestChanceOfSlicesIsTheSeedsAlone: when the engine asks for signs of life, and how often another rule was looked at,
// changes nothing.
func TestChanceOfSlicesIsTheSeedsAlone(t *testing.T) {
	const n, text = 32, "seed=11; rail=0 reject rate=0.4; rail=1 lose rate=0.4"
	b := newBench(t, text)
	rails := b.c.Rails()
	first, second := b.pattern(t, rails[0], n, nothing), b.pattern(t, rails[1], n, nothing)
	require.NotEqual(t, first, second, "each rule has a chance of its own")
	for _, fine := range [][]bool{first, second} {
		require.Contains(t, fine, true)
		require.Contains(t, fine, false)
	}

	b = newBench(t, text)
	rails = b.c.Rails()
	tr := b.a.Transport.(*Transport)
	tr.witness = witnessing{}
	other := b.slices(rails[1], n)
	got := b.pattern(t, rails[0], n, func(i int) {
		for range i % 5 {
			tr.Heard(rails[0])
		}
		require.Equal(t, 1, b.c.Send(other[i]))
		require.Equal(t, second[i], b.c.Wait(t, other[i])[0].Err == nil)
	})
	require.Equal(t, first, got)
}

// TestASeedBeginsChanceAnew, for rules in force and for those that follow it; the same faults behind the same seed
// repeat it.
func TestASeedBeginsChanceAnew(t *testing.T) {
	const n, text = 32, "heal; seed=7; reject rate=0.5"
	b := newBench(t, "slow=1GiB ambient; "+text)
	rail := b.c.Rail(t)
	first := b.pattern(t, rail, n, nothing)
	require.NotEqual(t, first, b.pattern(t, rail, n, nothing), "it goes on")
	b.apply(t, "seed=7")
	require.Equal(t, first, b.pattern(t, rail, n, nothing))
	b.apply(t, text)
	again := b.pattern(t, rail, n, nothing)
	b.apply(t, text)
	require.Equal(t, again, b.pattern(t, rail, n, nothing))
	b.apply(t, "heal; reject rate=0.5")
	require.NotEqual(t, again, b.pattern(t, rail, n, nothing), "another rule since the seed")
}
