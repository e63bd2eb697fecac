package qos

import "math"

// Bounds of the knowledge of a Quota, and of how quickly it learns.
const (
	quotaAlpha = 1.0 / 16 // weight of a new sample
	beta1Least = 0.1      // as upstream bounds a learned bandwidth: a tenth of and ten times the nominal one
	beta1Most  = 10.0
	beta0Most  = 100e6 // ns
	quotaRate  = 1e9   // bytes/s, of a NIC that nothing is known of
	quotaApart = 1e-3  // least variance of sizes, of their squared mean, from which both parameters can be found
)

// Quota predicts how long a local NIC takes for the bytes in flight there of all processes of the host (transports
// seed, 3.6):
//
//	predicted = active bytes * beta1 / bandwidth + beta0
//
// beta1 corrects the bandwidth, beta0 is the fixed cost of a transfer. Both follow from transfers by exponential
// smoothing: not of each parameter apart, as the seed has it, since one transfer cannot tell the one from the other,
// but of the sums from which the line through the transfers follows, each weighed by how long it was expected to take.
// While all transfers are of one size, beta0 stays. The zero value knows nothing, and is ready.
type Quota struct {
	w, x, y, xx, xy float64 // smoothed sums of weights, of times by the bandwidth, of times that it took, and products
	beta0           float64 // ns
	beta1           float64 // less 1, so that the zero value is neutral
}

// Predict returns the nanoseconds until active bytes are through a NIC of that many bytes a second. A rate that is not
// above 0 is not known: the answer is that of a usual NIC, so that it is tried at all. active counts those of other
// processes.
func (q *Quota) Predict(active uint64, rate float64) float64 {
	return float64(active)*(1+q.beta1)/knownRate(rate) + q.beta0
}

// Learn notes the nanoseconds that active bytes, counted when the last of them was posted, took to get through.
// A time that is not above 0 is no sample, nor is one without a byte.
func (q *Quota) Learn(active uint64, rate, took float64) {
	if active == 0 || !(took > 0) || math.IsInf(took, 1) {
		return
	}
	x := float64(active) / knownRate(rate)
	took = clamp(took, x*beta1Least, x*beta1Most+beta0Most)
	expected := max(x*(1+q.beta1)+q.beta0, 1)
	w := 1 / (expected * expected)
	for _, p := range [...]struct {
		sum *float64
		by  float64
	}{{&q.w, 1}, {&q.x, x}, {&q.y, took}, {&q.xx, x * x}, {&q.xy, x * took}} {
		*p.sum += quotaAlpha * (w*p.by - *p.sum)
	}
	meanX, meanY := q.x/q.w, q.y/q.w
	if variance := q.xx/q.w - meanX*meanX; variance > quotaApart*meanX*meanX {
		q.beta1 = clamp((q.xy/q.w-meanX*meanY)/variance, beta1Least, beta1Most) - 1
		q.beta0 = clamp(meanY-meanX*(1+q.beta1), 0, beta0Most)
	}
	q.beta1 = clamp((meanY-q.beta0)/meanX, beta1Least, beta1Most) - 1
}

func clamp(x, least, most float64) float64 { return min(max(x, least), most) }

// knownRate is in bytes/ns.
func knownRate(rate float64) float64 {
	if !(rate > 0) || math.IsInf(rate, 1) {
		rate = quotaRate
	}
	return rate / 1e9
}
