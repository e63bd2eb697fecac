package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

var (
	host = End{Kind: mem.Host, Location: "cpu:0"}
	gpu  = End{Kind: mem.Cuda, Location: "cuda:1"}
)

// candidate can carry host memory and is fine.
func candidate(index uint8, name string, change func(*Candidate)) Candidate {
	info := &transport.Info{Name: name, SliceMax: 1 << 20, SliceBest: 64 << 10, Alignment: 1}
	info.Pairs[mem.Host][mem.Host] = true
	c := Candidate{Transport: index, Info: info, Link: LinkID(index + 1), LocalKey: 10, RemoteKey: 20}
	if change != nil {
		change(&c)
	}
	return c
}

func order(p *Plan) (list []int) {
	for _, r := range p.Routes {
		list = append(list, int(r.Transport))
	}
	return list
}

func TestRoutesAreInTheOrderOfThePolicy(t *testing.T) {
	candidates := []Candidate{candidate(0, "rdma", nil), candidate(1, "shm", nil), candidate(2, "tcp", nil)}
	here := host
	here.Node = 2
	p, err := Build(&Request{Op: transport.Write, Local: here, Remote: host}, candidates)
	require.Nil(t, err)
	require.Equal(t, 2, p.Node, "of the local end")
	require.Equal(t, []int{0, 1, 2}, order(p))
	require.Empty(t, p.Rejected)
	require.Equal(t, Route{Transport: 1, Hops: []Hop{{Link: 2, Op: transport.Write, LocalKey: 10, RemoteKey: 20}},
		SliceMax: 1 << 20, SliceBest: 64 << 10, Alignment: 1}, p.Routes[1])

	p, err = Build(&Request{Op: transport.Read, Local: host, Remote: host, Hint: "tcp"}, candidates)
	require.Nil(t, err)
	require.Equal(t, []int{2, 0, 1}, order(p))
	require.Equal(t, transport.Read, p.Routes[0].Hops[0].Op)
}

func TestEachWayThatIsNotTakenSaysWhy(t *testing.T) {
	for reason, change := range map[string]func(*Candidate){
		"it was disabled":                         func(c *Candidate) { c.Disabled = "it was disabled" },
		"does not move bytes between cpu and cpu": func(c *Candidate) { c.Info.Pairs[mem.Host][mem.Host] = false },
		"the peer is on another host":             func(c *Candidate) { c.Info.SameHost = true },
		"the peer is on this host":                func(c *Candidate) { c.Info.OtherHost, c.SameHost = true, true },
		"is not registered with it":               func(c *Candidate) { c.LocalKey = 0 },
		"registered with it: it is no CUDA":       func(c *Candidate) { c.LocalKey, c.NotHere = 0, "it is no CUDA" },
		"does not offer the region":               func(c *Candidate) { c.RemoteKey = 0 },
		"no link to the peer":                     func(c *Candidate) { c.Link = 0 },
	} {
		bad := candidate(0, "rdma", change)
		p, err := Build(&Request{Op: transport.Write, Local: host, Remote: host},
			[]Candidate{bad, candidate(1, "tcp", nil)})
		require.Nil(t, err)
		require.Equal(t, []int{1}, order(p))
		require.Len(t, p.Rejected, 1)
		require.Equal(t, "rdma", p.Rejected[0].Transport)
		require.Contains(t, p.Rejected[0].Reason, reason)

		_, err = Build(&Request{Op: transport.Write, Local: host, Remote: host}, []Candidate{bad})
		require.Equal(t, errs.NoRoute, err.Code)
		require.ErrorContains(t, err, "rdma: ")
		require.ErrorContains(t, err, reason)

		_, err = Build(&Request{Op: transport.Write, Local: host, Remote: host, Hint: "rdma"},
			[]Candidate{bad, candidate(1, "tcp", nil)})
		require.Equal(t, errs.InvalidArgument, err.Code)
		require.ErrorContains(t, err, reason)
	}
}

func TestSameHostTransportsTakeOurselves(t *testing.T) {
	for _, change := range []func(*Candidate){func(c *Candidate) { c.SameHost = true },
		func(c *Candidate) { c.Self = true }} {
		c := candidate(0, "shm", change)
		c.Info.SameHost = true
		_, err := Build(&Request{Op: transport.Write, Local: host, Remote: host}, []Candidate{c})
		require.Nil(t, err)
	}
}

func TestOtherHostTransportsLeaveOutOurselves(t *testing.T) {
	for _, change := range []func(*Candidate){func(c *Candidate) { c.SameHost = true },
		func(c *Candidate) { c.Self = true }, func(*Candidate) {}} {
		c := candidate(0, "mnnvl", change)
		c.Info.OtherHost = true
		_, err := Build(&Request{Op: transport.Write, Local: host, Remote: host}, []Candidate{c})
		require.Equal(t, c.SameHost || c.Self, err != nil, "%v", err)
	}
}

// A reason beside the transport that was asked for is its own, and the reason for the region is for regions without a
// key alone.
func TestTheReasonIsThatOfTheTransportAskedFor(t *testing.T) {
	unfit := func(reason string) func(*Candidate) { return func(c *Candidate) { c.Disabled = reason } }
	candidates := []Candidate{candidate(0, "rdma", unfit("no device")), candidate(1, "shm", unfit("no cable")),
		candidate(2, "tcp", func(c *Candidate) { c.NotHere = "an old reason" })}
	_, err := Build(&Request{Op: transport.Write, Local: host, Remote: host, Hint: "shm"}, candidates)
	require.ErrorContains(t, err, `transport "shm" was asked for and cannot carry this: no cable`)
	p, err := Build(&Request{Op: transport.Write, Local: host, Remote: host, Hint: "tcp"}, candidates)
	require.Nil(t, err)
	require.Equal(t, []int{2}, order(p))
}

func TestWrongHintsAndEmptyHands(t *testing.T) {
	_, err := Build(&Request{Op: transport.Write, Local: host, Remote: host, Hint: "udp"},
		[]Candidate{candidate(0, "rdma", nil), candidate(1, "tcp", nil)})
	require.Equal(t, errs.InvalidArgument, err.Code)
	require.ErrorContains(t, err, `transport "udp" is not open in this engine; open are rdma, tcp`)
	_, err = Build(&Request{Op: transport.Write, Local: host, Remote: host}, nil)
	require.Equal(t, errs.NoRoute, err.Code)
	require.ErrorContains(t, err, "no transport is open; enable one")
	_, err = Build(&Request{Op: transport.Write, Local: host, Remote: gpu}, []Candidate{candidate(0, "tcp", nil)})
	require.ErrorContains(t, err,
		"no transport can carry a WRITE between cpu:0 and cuda:1: tcp: it does not move bytes between cpu and cuda")
	_, err = Build(&Request{Op: 7, Local: host, Remote: host}, nil)
	require.Equal(t, errs.InvalidArgument, err.Code)
}

func TestTheBestSliceIsNeverBeyondTheLongest(t *testing.T) {
	p, err := Build(&Request{Op: transport.Write, Local: host, Remote: host},
		[]Candidate{candidate(0, "tcp", func(c *Candidate) {
			c.Info.SliceBest, c.Info.Alignment = 2<<20, 0
		})})
	require.Nil(t, err)
	require.EqualValues(t, 1<<20, p.Routes[0].SliceBest)
	require.EqualValues(t, 1, p.Routes[0].Alignment)
	p, err = Build(&Request{Op: transport.Write, Local: host, Remote: host},
		[]Candidate{candidate(0, "tcp", func(c *Candidate) { c.Info.SliceMax = 0 })})
	require.Nil(t, err)
	require.EqualValues(t, 64<<10, p.Routes[0].SliceBest, "without a longest slice the best one stays")
}

func TestARouteHasThePiecesOfASliceOfItsTransport(t *testing.T) {
	p, err := Build(&Request{Op: transport.Write, Local: host, Remote: host},
		[]Candidate{candidate(0, "tcp", func(o *Candidate) { o.Info.PiecesMax = 256 })})
	require.Nil(t, err)
	require.EqualValues(t, 256, p.Routes[0].PiecesMax)
}

// A transport that copies some memory through its own has shorter slices there.
func TestAPairOfRegionsMayHaveAShorterLongestSlice(t *testing.T) {
	for _, c := range []struct{ pair, all, most, best uint64 }{
		{pair: 0, all: 1 << 20, most: 1 << 20, best: 64 << 10},
		{pair: 32 << 10, all: 1 << 20, most: 32 << 10, best: 32 << 10},
		{pair: 32 << 10, all: 0, most: 32 << 10, best: 32 << 10},
		{pair: 2 << 20, all: 1 << 20, most: 1 << 20, best: 64 << 10},
	} {
		p, err := Build(&Request{Op: transport.Write, Local: host, Remote: host},
			[]Candidate{candidate(0, "tcp", func(o *Candidate) {
				o.Info.SliceMax, o.Match.SliceMax = c.all, c.pair
			})})
		require.Nil(t, err)
		require.Equal(t, [2]uint64{c.most, c.best}, [2]uint64{p.Routes[0].SliceMax, p.Routes[0].SliceBest}, "%+v", c)
	}
}
