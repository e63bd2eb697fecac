package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// The subtests bear the names of upstream's transport_selector_test; where this build differs, the test says how.

const (
	foregroundGet = 1
	checkpoint    = 4
)

// policies are rules as people write them.
func policies(t *testing.T, text string) Policies {
	t.Helper()
	c, err := config.Load(config.Options{Transports: config.WithRails("rdma", "mnnvl", "nvlink", "shm", "gds",
		"io-uring", "tcp")},
		`{"policy": `+text+`}`)
	require.NoError(t, err)
	return NewPolicies(c.Engine.Policies)
}

// chosen is the name of the policy that counts, "" for none.
func chosen(t *testing.T, p Policies, ask Ask) string {
	t.Helper()
	i, err := p.Match(&ask)
	require.Nil(t, err)
	if i == NoPolicy {
		return ""
	}
	return p.Get(i).Name
}

// names are those of the routes, in order.
func names(p *Plan, candidates []Candidate) (list []string) {
	for _, i := range order(p) {
		list = append(list, candidates[i].Info.Name)
	}
	return list
}

// between are candidates that move bytes between two kinds.
func between(local, remote mem.Kind, transports ...string) []Candidate {
	var list []Candidate
	for i, name := range transports {
		list = append(list, candidate(uint8(i), name, func(c *Candidate) { c.Info.Pairs[local][remote] = true }))
	}
	return list
}

func built(t *testing.T, r Request, candidates []Candidate) *Plan {
	t.Helper()
	p, err := Build(&r, candidates)
	require.Nil(t, err)
	return p
}

func TestUpstreamsDefaultPolicies(t *testing.T) {
	var none Policies
	for name, c := range map[string]struct {
		local, remote mem.Kind
		want          []string
	}{
		"DefaultPoliciesMemorySegment":         {mem.Host, mem.Host, []string{"rdma", "tcp"}},
		"DefaultPoliciesFileSegment":           {mem.Host, mem.File, []string{"gds", "io-uring"}},
		"DefaultPoliciesFileSegmentGpuMemory":  {mem.Cuda, mem.File, []string{"gds", "io-uring"}},
		"TransportCapabilityGpuToGpu":          {mem.Cuda, mem.Cuda, []string{"nvlink", "rdma"}},
		"RocmMemoryTypeSupported":              {mem.Rocm, mem.Rocm, []string{"rdma"}},
		"TransportCapabilityDramToDram":        {mem.Host, mem.Host, []string{"rdma"}},
		"FileSegmentDramToFile/FileSegmentGpu": {mem.Host, mem.File, []string{"io-uring"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, none.None())
			require.Empty(t, chosen(t, none, Ask{Local: c.local, Remote: c.remote}))
			candidates := between(c.local, c.remote, c.want...)
			p := built(t, Request{Local: End{Kind: c.local}, Remote: End{Kind: c.remote}, Policy: none.Get(NoPolicy)},
				candidates)
			require.Equal(t, c.want, names(p, candidates), "without a policy the order is that of the build")
			require.Zero(t, p.Devices, "DeviceMaskDefaultAll")
		})
	}
}

func TestUpstreamsCapabilities(t *testing.T) {
	for name, c := range map[string]struct{ has, asked [2]mem.Kind }{
		"TransportCapabilityDramToGpu": {[2]mem.Kind{mem.Host, mem.Cuda}, [2]mem.Kind{mem.Cuda, mem.Host}},
		"TransportCapabilityGpuToDram": {[2]mem.Kind{mem.Cuda, mem.Host}, [2]mem.Kind{mem.Host, mem.Cuda}},
		"FileSegmentGpuToFile":         {[2]mem.Kind{mem.Cuda, mem.File}, [2]mem.Kind{mem.Cuda, mem.Host}},
	} {
		t.Run(name, func(t *testing.T) {
			candidates := between(c.has[0], c.has[1], "rdma")
			built(t, Request{Local: End{Kind: c.has[0]}, Remote: End{Kind: c.has[1]}}, candidates)
			_, err := Build(&Request{Local: End{Kind: c.asked[0]}, Remote: End{Kind: c.asked[1]}}, candidates)
			require.Equal(t, errs.NoRoute, err.Code)
		})
	}
	near := candidate(0, "nvlink", func(c *Candidate) { c.Info.SameHost = true })
	t.Run("NvLinkRequiresSameMachine", func(t *testing.T) {
		_, err := Build(&Request{}, []Candidate{near})
		require.ErrorContains(t, err, "the peer is on another host")
	})
	t.Run("NvLinkAvailableSameMachine", func(t *testing.T) {
		near.SameHost = true
		built(t, Request{}, []Candidate{near})
	})
}

func TestConfigBasedPolicySelection(t *testing.T) {
	p := policies(t, `[
		{"name": "small", "segment_type": "memory", "max_size": 4096, "transports": ["tcp"]},
		{"name": "big", "segment_type": "memory", "min_size": 1048576, "same_machine": false},
		{"name": "gpu", "segment_type": "memory", "local_memory": "cuda", "remote_memory": "cpu"},
		{"name": "low", "segment_type": "memory", "priority": "low", "local_memory": "*"},
		{"name": "near", "segment_type": "memory", "same_machine": true, "priority": 1},
		{"name": "disk", "segment_type": "file"}]`)
	require.True(t, p.Sized())
	for want, asks := range map[string][]Ask{
		"small": {{Length: 4096}, {Length: 1, Local: mem.Cuda}},
		"big":   {{Length: 1 << 20}, {Length: 1 << 30, Class: 2}},
		"gpu":   {{Length: 5000, Local: mem.Cuda}, {Length: 1 << 20, Local: mem.Cuda, SameMachine: true}},
		"low":   {{Length: 5000, Class: 2}, {Length: 5000, Class: 2, Local: mem.Rocm}},
		"near":  {{Length: 5000, Class: 1, SameMachine: true}},
		"disk":  {{Length: 1, Remote: mem.File}, {Length: 1 << 30, Remote: mem.File, Class: 2}},
		"":      {{Length: 5000}, {Length: 5000, Class: 1}, {Length: 5000, Local: mem.Cuda, Remote: mem.Cuda}},
	} {
		for _, ask := range asks {
			require.Equal(t, want, chosen(t, p, ask), "%+v", ask)
		}
	}
}

func TestUpstreamsIntents(t *testing.T) {
	specific := `[{"name": "get", "segment_type": "memory", "intent_type": "foreground_get"}, {"name": "all", "segment_type": "memory"}]`
	p := policies(t, specific)
	t.Run("IntentSpecificPolicyIsSelected", func(t *testing.T) {
		require.Equal(t, "get", chosen(t, p, Ask{Intent: foregroundGet}))
	})
	t.Run("IntentMismatchFallsThroughToCatchAll", func(t *testing.T) {
		require.Equal(t, "all", chosen(t, p, Ask{Intent: checkpoint}))
	})
	t.Run("PolicyWithoutIntentMatchesAnyIntent", func(t *testing.T) {
		all := policies(t, `[{"name": "all", "segment_type": "memory"}]`)
		for intent := range uint8(7) {
			require.Equal(t, "all", chosen(t, all, Ask{Intent: intent}))
		}
	})
	t.Run("NumericIntentValueIsAccepted", func(t *testing.T) {
		p := policies(t, `[{"name": "four", "segment_type": "memory", "intent_type": 4}]`)
		require.Equal(t, "four", chosen(t, p, Ask{Intent: checkpoint}))
		require.Empty(t, chosen(t, p, Ask{}))
	})
	t.Run("ExplicitPolicyNameOverridesIntentFilter", func(t *testing.T) {
		require.Equal(t, "get", chosen(t, p, Ask{Intent: checkpoint, Name: config.PolicyID("get")}))
		_, err := p.Match(&Ask{Remote: mem.File, Name: config.PolicyID("get")})
		require.Equal(t, errs.InvalidArgument, err.Code, "the type of segment counts even so")
		require.ErrorContains(t, err, "no policy for file segments")
	})
}

// The index 0 stands for the class HIGH, no name for none: neither makes a rule one that matches all.
func TestARuleOfTheFirstClassOrOfNoNameMatchesNoMore(t *testing.T) {
	p := policies(t, `[{"segment_type": "memory", "priority": "high", "transports": ["rdma"]},
		{"segment_type": "memory", "intent_type": 0, "transports": ["shm"]},
		{"segment_type": "memory", "min_size": 4096, "transports": ["tcp"]}]`)
	for want, ask := range map[int]Ask{
		0:        {Class: 0, Intent: checkpoint},
		1:        {Class: 1},
		2:        {Class: 1, Intent: checkpoint, Length: 4096},
		NoPolicy: {Class: 1, Intent: checkpoint, Length: 4095},
	} {
		i, err := p.Match(&ask)
		require.Nil(t, err)
		require.Equal(t, want, i, "%+v", ask)
	}
}

func TestUpstreamsHints(t *testing.T) {
	p := policies(t, `[{"name": "net", "segment_type": "memory", "transports": ["tcp", "rdma"]}]`)
	candidates := between(mem.Host, mem.Host, "shm", "rdma", "tcp")
	t.Run("PriorityOffsetFallback", func(t *testing.T) {
		made := built(t, Request{Policy: p.Get(0)}, candidates)
		require.Equal(t, []string{"tcp", "rdma"}, names(made, candidates), "failover goes on with the next of the list")
		require.Equal(t, `policy "net"`, made.Policy)
		require.Equal(t, []Rejected{{"shm", `policy "net" does not list it`}}, made.Rejected)
	})
	t.Run("HintIsPrependedToCandidateList/FailoverFromHintAdvancesByIndex", func(t *testing.T) {
		require.Equal(t, []string{"rdma", "tcp"}, names(built(t, Request{Policy: p.Get(0), Hint: "rdma"}, candidates),
			candidates))
	})
	t.Run("HintNotInMatchingPolicyReturnsUnspec", func(t *testing.T) {
		_, err := Build(&Request{Policy: p.Get(0), Hint: "shm"}, candidates)
		require.Equal(t, errs.InvalidArgument, err.Code, "upstream fails the request later")
		require.ErrorContains(t, err,
			`transport "shm" was asked for and cannot carry this: policy "net" does not list it`)
	})
}

func TestAPolicyMayListWhatIsNotBuilt(t *testing.T) {
	p := policies(t,
		`[{"segment_type": "memory", "transports": ["mnnvl", "tcp"]}, {"segment_type": "file", "transports": ["gds"]}]`)
	candidates := between(mem.Host, mem.Host, "tcp")
	made := built(t, Request{Policy: p.Get(0)}, candidates)
	require.Equal(t, []string{"tcp"}, names(made, candidates))
	require.Equal(t, []Rejected{{"mnnvl", "policy [0] lists it, and it is not part of this build"}}, made.Rejected)
	_, err := Build(&Request{Policy: p.Get(1)}, candidates)
	require.Equal(t, errs.NoRoute, err.Code)
	require.ErrorContains(t, err, "gds: policy [1] lists it")
	require.ErrorContains(t, err, "tcp: policy [1] does not list it")
}

func TestUpstreamsDeviceMasks(t *testing.T) {
	p := policies(t, `[{"name": "a", "segment_type": "memory", "devices": ["eth0", "eth1"]},
		{"name": "b", "segment_type": "memory", "devices": ["eth1", "10.0.0.5"]}, {"name": "c", "segment_type": "memory"}]`)
	candidates := between(mem.Host, mem.Host, "tcp")
	t.Run("DeviceMaskResolvesNamedNics/DeviceMaskIsStableAcrossSelects", func(t *testing.T) {
		for range 2 {
			require.Equal(t, uint64(0b011), built(t, Request{Policy: p.Get(0)}, candidates).Devices)
			require.Equal(t, uint64(0b110), built(t, Request{Policy: p.Get(1)}, candidates).Devices)
		}
	})
	t.Run("DeviceMaskDefaultAll", func(t *testing.T) {
		require.Zero(t, built(t, Request{Policy: p.Get(2)}, candidates).Devices)
	})
	t.Run("DeviceMaskDropsNicsPastMaskWidth", func(t *testing.T) {
		var many []string
		for i := range 65 {
			many = append(many, fmt.Sprintf(`"eth%d"`, i))
		}
		_, err := config.Load(config.Options{}, `{"policy": [{"segment_type": "memory", "devices": [`+strings.Join(many,
			",")+`]}]}`)
		require.ErrorContains(t, err, "name more than 64", "nothing is dropped in silence here")
	})
}
