package transporttest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func replaceRules() []rule {
	return []rule{
		{"AForgottenKeyNamesNoOtherRegion", nil, testForget},
		{"AReplacedDescriptorIsImportedAgain", needsReplace, testReplace},
		{"SlicesUnderWayOutliveAReplacedDescriptor", needsReplace, testReplaceMeanwhile},
	}
}

func needsReplace(h Harness, _ transport.Transport) string {
	return unless(h.Replace != nil, "the descriptors of its regions never change")
}

// testForget uses a key that was forgotten while others are imported. Its slices reach their own region, or none.
func testForget(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	local, remote := p.operands(t, size)
	rail := p.c.Rail(t)
	local.Fill(tagMoved, 0, size)
	p.c.Must(t, p.c.Slice(transport.Write, rail, local, 0, remote, 0, size))
	tr := p.a.Transport
	tr.Forget(p.c.Link, remote.Key+1000)
	tr.Forget(p.c.Link, remote.Key)
	tr.Forget(p.c.Link, remote.Key)
	for range 4 {
		other := p.c.Import(t, p.b.Register(t, size, mem.GlobalReadWrite))
		other.Fill(tagBefore, 0, size)
		require.False(t, other.Key == remote.Key, "the key of another region is one that was forgotten")
		if err := p.c.One(t, p.c.Slice(transport.Write, rail, local, 0, remote, 0, size)); err != nil {
			require.Equal(t, errs.ScopeSlice, err.Scope, "the rail is not to blame: %v", err)
		}
		require.NoError(t, other.Check(tagBefore, 0, 0, size), "a forgotten key led here")
	}
	again := p.c.Import(t, remote.Operand)
	again.Fill(tagBefore, 0, size)
	p.c.Must(t, p.c.Slice(transport.Write, rail, local, 0, again, 0, size))
	require.NoError(t, again.Check(tagMoved, 0, 0, size))
}

// describe replaces the descriptor of an operand and waits until its host has heard of it.
func (p *pair) describe(t *testing.T, h Harness, o *Operand, serve bool) *Operand {
	t.Helper()
	h.Replace(t, o.Node, o.Key, serve)
	fresh := *o
	p.w.Await(t, "the host to hear of a new descriptor", func() bool {
		fresh.Descriptor = o.Node.described[o.Key]
		return fresh.Descriptor != nil && string(fresh.Descriptor) != string(o.Descriptor)
	})
	return &fresh
}

func testReplace(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	rail := p.c.Rail(t)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		local, remote, _, to := p.aimed(t, op, size)
		p.c.Must(t, p.c.Slice(op, rail, local, 0, remote, 0, size))
		to.Fill(tagBefore, 0, size)
		fresh := p.c.Import(t, p.describe(t, h, remote.Operand, false))
		require.False(t, fresh.Key == remote.Key, "another descriptor has another key")
		err := p.c.One(t, p.c.Slice(op, rail, local, 0, remote, 0, size))
		require.NotNil(t, err, "a key that is not served was")
		require.Equal(t, errs.Replaced, err.Code, "%v", err)
		require.Equal(t, errs.ScopeSlice, err.Scope, "the rail is not to blame: %v", err)
		require.False(t, err.Permanent() || err.Collateral, "it is sent again: %v", err)
		require.NoError(t, to.Check(tagBefore, 0, 0, size), "a refused slice moved bytes")
		p.c.Must(t, p.c.Slice(op, rail, local, 0, fresh, 0, size))
		require.NoError(t, to.Check(tagMoved, 0, 0, size))
		p.a.Transport.Forget(p.c.Link, remote.Key)
		to.Fill(tagBefore, 0, size)
		p.c.Must(t, p.c.Slice(op, rail, local, 0, fresh, 0, size))
		require.NoError(t, to.Check(tagMoved, 0, 0, size), "the new key outlives the old one")
	}
}

// testReplaceMeanwhile replaces descriptors under slices that are out. Each arrives whole, or is refused whole.
func testReplaceMeanwhile(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 16
	length := fit(p.c, 4096)
	rail := p.c.Rail(t)
	for _, serve := range []bool{true, false} {
		local, remote, _, to := p.aimed(t, transport.Write, n*length)
		list := p.volley(transport.Write, rail, local, remote, n, length)
		require.Equal(t, n, p.c.Submit(list...))
		p.describe(t, h, remote.Operand, serve)
		for i, end := range p.c.Wait(t, list...) {
			at := uint64(i) * length
			switch {
			case end.Err == nil:
				require.NoError(t, to.Check(tagMoved, at, at, length))
			case serve:
				require.Failf(t, "a descriptor that is served was refused", "%v", end.Err)
			default:
				require.Equal(t, errs.Replaced, end.Err.Code, "%v", end.Err)
				require.NoError(t, to.Check(tagBefore, at, at, length), "a refused slice moved bytes")
			}
		}
	}
}
