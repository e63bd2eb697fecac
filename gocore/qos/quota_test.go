package qos

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANewQuotaPredictsByTheBandwidthAlone(t *testing.T) {
	for _, c := range []struct {
		active uint64
		rate   float64
		want   float64 // ns
	}{
		{0, 1e9, 0},
		{1000, 1e9, 1000},
		{1 << 20, 5e10, float64(1<<20) / 50},
		{1000, 0, 1000},           // a NIC of unknown rate is a usual one: 0 would mean never
		{1000, -5, 1000},          // nonsense is not known either
		{1000, math.NaN(), 1000},  //
		{1000, math.Inf(1), 1000}, //
		{math.MaxUint64, 1e9, float64(math.MaxUint64)},
	} {
		require.InEpsilon(t, c.want+1, (&Quota{}).Predict(c.active, c.rate)+1, 1e-9, "%+v", c)
	}
}

// A mixture of sizes finds both parameters, for every truth within the bounds.
func TestQuotaConverges(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for _, c := range []struct{ beta0, beta1, rate, noise float64 }{
		{0, 1, 1e9, 0}, {20e3, 1, 1e9, 0}, {20e3, 1.5, 5e10, 0}, {300e3, 0.5, 1e8, 0}, {50e3, 4, 1e9, 0},
		{20e3, 1.2, 1e9, 0.2}, {300e3, 2, 1e10, 0.2},
	} {
		q := &Quota{}
		sizes := []uint64{4096, 65536, 1 << 20, 16 << 20}
		truth := func(n uint64) float64 { return float64(n)*c.beta1/c.rate*1e9 + c.beta0 }
		for range 2000 {
			n := sizes[random.IntN(len(sizes))]
			q.Learn(n, c.rate, truth(n)*(1+c.noise*(2*random.Float64()-1)))
		}
		for _, n := range sizes {
			require.InEpsilon(t, truth(n), q.Predict(n, c.rate), 0.02+c.noise, "%+v, %d bytes, seed %d", c, n, seed)
		}
	}
}

// A NIC that has become half as fast is believed within some transfers, not after hundreds.
func TestQuotaFollowsAChange(t *testing.T) {
	q := &Quota{}
	for range 100 {
		q.Learn(1<<20, 1e9, 1<<20)
	}
	for range 40 {
		q.Learn(1<<20, 1e9, 2<<20)
	}
	require.InEpsilon(t, 2<<20, q.Predict(1<<20, 1e9), 0.1)
}

func TestQuotaStaysWithinItsBounds(t *testing.T) {
	for _, took := range []float64{1e-9, 1, 1e18, math.MaxFloat64} {
		q := &Quota{}
		for i := range 1000 {
			q.Learn(uint64(1)<<(i%40), 1e9, took)
		}
		beta0, beta1 := q.beta0, 1+q.beta1
		require.GreaterOrEqual(t, beta0, 0.0, "took %g", took)
		require.LessOrEqual(t, beta0, beta0Most, "took %g", took)
		require.GreaterOrEqual(t, beta1, beta1Least-1e-9, "took %g", took)
		require.LessOrEqual(t, beta1, beta1Most, "took %g", took)
	}
}

func TestWhatIsNoSampleTeachesNothing(t *testing.T) {
	q := &Quota{}
	for _, took := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		q.Learn(1<<20, 1e9, took)
	}
	q.Learn(0, 1e9, 5)
	require.Equal(t, Quota{}, *q)
	require.Zero(t, testing.AllocsPerRun(100, func() { q.Learn(1<<20, 1e9, 1e6); q.Predict(1<<20, 1e9) }))
}
