package tests

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

const policiesBySize = `[
	{"name": "checkpoints", "segment_type": "memory", "intent_type": "checkpoint", "transports": ["tcp"]},
	{"name": "small", "segment_type": "memory", "max_size": 4096, "transports": ["tcp", "rdma"]},
	{"segment_type": "memory", "local_memory": "cpu", "transports": ["rdma"], "service_level": 3, "devices": ["mlx5_0"]}]`

// policyPair is two engines over simulated transports called rdma and tcp, in this order of the build.
func policyPair(t *testing.T, policy string) *twoWays {
	return newTwoWays(t, map[string]any{"policy": decoded(t, policy)}, "")
}

func decoded(t *testing.T, text string) (value any) {
	require.NoError(t, json.Unmarshal([]byte(text), &value))
	return value
}

func (w *twoWays) at(length uint64) *engine.Request {
	return &engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(w.source), Length: length,
		Remote: engine.Remote{Segment: w.segment}}
}

// over moves a request and returns the transports that carried it.
func (w *twoWays) over(r *engine.Request) (names []string) {
	w.Helper()
	id, err := w.here.Move(r)
	require.NoError(w, err)
	return w.carriers(id)
}

func (w *twoWays) carriers(id dispatch.BatchID) (names []string) {
	w.Helper()
	sum := ended(w, w.here, id)
	require.Equal(w, dispatch.Completed, sum.State, "%v", sum.Err)
	for i, name := range w.here.Transports() {
		if sum.Transports>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return names
}

func TestAPolicyChoosesTheTransportOfEachRequest(t *testing.T) {
	w := policyPair(t, policiesBySize)
	require.Equal(t, []string{"tcp"}, w.over(w.at(4096)))
	require.Equal(t, []string{"rdma"}, w.over(w.at(4097)))
	r := w.at(4097)
	r.Intent = request.IntentCheckpoint
	require.Equal(t, []string{"tcp"}, w.over(r), "the same regions, another plan")
	require.Equal(t, []string{"rdma"}, w.over(w.at(wayBytes)))
}

func TestRangesOfOneCallMayFallUnderSeveralPolicies(t *testing.T) {
	w := policyPair(t, policiesBySize)
	offsets, lengths := []int64{0, 4096}, []int64{4096, 65536}
	ranges := &engine.Ranges{Local: address(w.source), LocalSize: wayBytes,
		Remote: engine.Remote{Segment: w.segment}, RemoteSize: wayBytes, N: 2, LocalOffsets: engine.IndexesOf(offsets),
		RemoteOffsets: engine.IndexesOf(offsets), Bytes: engine.IndexesOf(lengths)}
	id, err := w.here.Ranges(engine.Terms{Op: transport.Write}, ranges, nil)
	require.NoError(t, err)
	carried := w.carriers(id)
	slices.Sort(carried)
	require.Equal(t, []string{"rdma", "tcp"}, carried)
}

func TestExplainSaysWhichPolicyMatchedAndWhatItRejects(t *testing.T) {
	w := policyPair(t, policiesBySize)
	x, err := w.here.Explain(w.at(65536))
	require.NoError(t, err)
	require.Equal(t, "policy [2]", x.Policy)
	require.Equal(t, []string{"mlx5_0"}, x.Devices)
	require.Equal(t, "rdma", x.Taken)
	require.Equal(t, []engine.ExplainedRejected{{Transport: "tcp", Reason: "policy [2] does not list it"}}, x.Rejected)

	x, err = w.here.Explain(w.at(1))
	require.NoError(t, err)
	require.Equal(t, `policy "small"`, x.Policy)
	require.Equal(t, "tcp", x.Taken)
	require.Len(t, x.Routes, 2)
	require.Equal(t, "tcp is preferred and can be used", x.Routes[1].Why)
}

func TestPartsOfAPolicyWithoutEffectAreShown(t *testing.T) {
	w := policyPair(t, policiesBySize)
	for _, e := range w.here.Config().Inactive() {
		if e.Key == "policy" {
			require.True(t, e.Active)
			require.Contains(t, e.Why, "entry 2: service_level")
			return
		}
	}
	require.Fail(t, "policy is not listed")
}

func TestAHintThatThePolicyLeavesOutIsRefused(t *testing.T) {
	w := policyPair(t, policiesBySize)
	r := w.at(65536)
	r.Hint = 7
	_, err := w.here.Move(r)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	require.ErrorContains(t, err, `policy [2] does not list it`)
}

// LegacyModeDefaultOff and LegacyModeCanBeEnabled of upstream's tests.
func TestLegacySelectionKnowsNoPolicies(t *testing.T) {
	w := newTwoWays(t, map[string]any{"policy": decoded(t, policiesBySize), "use_legacy_transport_selection": true}, "")
	require.Equal(t, []string{"rdma"}, w.over(w.at(1)))
}
