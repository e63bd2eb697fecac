package tests

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// switchable are transports that an engine may lack; the last one moves files and no peer's memory.
var switchable = []string{"tcp", "shm", "buf-io"}

// with opens an engine with some of the switchable transports, and one region that peers may use.
func with(t *testing.T, set int) (e *engine.Engine, name string, own []byte) {
	t.Helper()
	settings := map[string]any{}
	var on []string
	for i, transport := range switchable {
		settings["transports/"+transport+"/enable"] = set&(1<<i) != 0
		if set&(1<<i) != 0 {
			on = append(on, transport)
		}
	}
	e = openAll(t, settings)
	own = memory(t, 64<<10)
	offer(t, e, own, "kv")
	return e, "{" + strings.Join(on, " ") + "}", own
}

// Two engines talk over any transport that both have. One that a side lacks is a route that is rejected, with the
// reason in the explanation. It is never the end of the peer, nor of a request.
func TestEnginesTalkOverAnyTransportThatBothHave(t *testing.T) {
	const sets, peers = 1 << 3, 1<<2 - 1
	type side struct {
		*engine.Engine
		name string
		own  []byte
	}
	var here, there [sets]side
	for set := range sets {
		here[set].Engine, here[set].name, here[set].own = with(t, set)
		there[set].Engine, there[set].name, there[set].own = with(t, set)
	}
	for i, a := range here {
		for j, b := range there {
			t.Run(a.name+" to "+b.name, func(t *testing.T) {
				s, err := a.OpenSegment(context.Background(), b.Address()+"/kv")
				if i&j&peers == 0 {
					if err != nil { // an engine with transports knows at once that none of them will do
						require.Equal(t, errs.NoRoute, errs.CodeOf(err), "%v", err)
						require.NotContains(t, err.Error(), "not open here")
						return
					}
					require.Zero(t, i&peers, "an engine with transports")
				}
				require.NoError(t, err)
				for k, op := range []transport.Op{transport.Write, transport.Read} {
					from, to := a.own, b.own
					if op == transport.Read {
						from, to = to, from
					}
					fill(from, 2*(i*sets+j)+k)
					r := &engine.Request{Terms: engine.Terms{Op: op}, Source: address(a.own),
						Remote: engine.Remote{Segment: s}, Length: uint64(len(a.own))}
					id, err := a.Move(r)
					if i&j&peers == 0 {
						require.Equal(t, errs.NoRoute, errs.CodeOf(err), "%v", err)
						continue
					}
					require.NoError(t, err)
					end := ended(t, a.Engine, id)
					require.Equal(t, dispatch.Completed, end.State, "%v", end.Err)
					same(t, to, 2*(i*sets+j)+k, 0)
					x, err := a.Explain(r)
					require.NoError(t, err)
					for n, name := range switchable[:2] {
						if (i&j)&(1<<n) == 0 {
							require.NotEmpty(t, rejection(x, name), "%s is not there on both sides: %+v", name, x)
						}
					}
				}
				alive, err := a.Alive(context.Background(), s)
				require.NoError(t, err)
				require.True(t, alive, "a peer without a transport is no peer that is gone")
				id, err := a.Notify(s, engine.Note{Name: []byte(a.name)}, clock.Now().Add(patience))
				require.NoError(t, err)
				require.Equal(t, dispatch.Completed, ended(t, a.Engine, id).State)
				require.NoError(t, a.CloseSegment(s))
			})
		}
	}
}

// rejection returns the reason for which an explanation rejects a transport.
func rejection(x *engine.Explanation, name string) string {
	for _, r := range x.Rejected {
		if r.Transport == name {
			return r.Reason
		}
	}
	return ""
}

// older is a transport with a protocol of other versions.
type older struct {
	transport.Factory
	versions transport.Versions
}

func (f older) Open(ctx context.Context, settings any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	t, err := f.Factory.Open(ctx, settings, host, sink)
	return versioned{t, f.versions}, err
}

type versioned struct {
	transport.Transport
	versions transport.Versions
}

func (t versioned) Inner() transport.Transport { return t.Transport }

func (t versioned) Info() transport.Info {
	info := t.Transport.Info()
	info.Versions = t.versions
	return info
}

// During a rolling upgrade engines of two versions talk: over a transport of which both speak a version, else over the
// next one.
func TestEnginesOfTwoVersionsTalk(t *testing.T) {
	n := sim.NewInline(1)
	open := func(t *testing.T, versions transport.Versions) *engine.Engine {
		near := sim.Factory{Settings: sim.Settings{Network: n, Name: "near", SameHost: true}}
		far := sim.Factory{Settings: sim.Settings{Network: n, Name: "far"}}
		return open(t, nil, []string{"near", "far"}, func() []engine.Plug {
			return []engine.Plug{{Factory: older{near, versions}}, {Factory: far}}
		})
	}
	for name, each := range map[string]struct {
		ours, theirs transport.Versions
		taken, why   string
	}{
		"this one and the next": {transport.Versions{First: 1, Last: 1}, transport.Versions{First: 1, Last: 2}, "near",
			""},
		"this one and a late one": {transport.Versions{First: 1, Last: 1}, transport.Versions{First: 2, Last: 3}, "far",
			"the peer speaks versions 2 to 3 of its protocol, this engine version 1"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, pair := range [][2]transport.Versions{{each.ours, each.theirs}, {each.theirs, each.ours}} {
				here, there := open(t, pair[0]), open(t, pair[1])
				own, theirs := memory(t, 4096), memory(t, 4096)
				offer(t, here, own, "")
				offer(t, there, theirs, "kv")
				fill(own, 1)
				r := &engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
					Remote: engine.Remote{Segment: segment(t, here, there, "kv")}}
				id, err := here.Move(r)
				require.NoError(t, err)
				require.Equal(t, dispatch.Completed, ended(t, here, id).State)
				same(t, theirs, 1, 0)
				x, err := here.Explain(r)
				require.NoError(t, err)
				require.Equal(t, each.taken, x.Taken)
				if pair[0] == each.ours {
					require.Equal(t, each.why, rejection(x, "near"))
				}
			}
		})
	}
}

// A peer that refuses one transport has not ended, however it words that.
func TestARefusalOverOneTransportIsNotTheEndOfThePeer(t *testing.T) {
	for _, code := range []errs.Code{errs.NotImplemented, errs.Protocol, errs.PermissionDenied, errs.Internal} {
		cause := errs.New(code, "serve", "not here").WithScope(errs.ScopeLink, errs.SideRemote)
		x := explained(t, func(f transport.Factory) transport.Factory {
			return refusing{f.(sim.Factory), cause}
		}, func(*sim.Network) {})
		require.Equal(t, "far", x.Taken, "%v", code)
	}
}
