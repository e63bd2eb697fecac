package transporttest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func pieceRules() []rule {
	return []rule{
		{"PiecesArriveWhereTheyBelong", needsVectors, testPieces},
		{"PiecesOutsideARegionAreRefused", needsVectors, testPiecesOutside},
		{"WithdrawnPiecesNeverLand", needsVectors, testPiecesWithdrawn},
	}
}

func needsVectors(_ Harness, tr transport.Transport) string {
	return unless(tr.Info().Vectors, "slices of pieces are not understood")
}

// grid is many pieces between two operands, each side in an order of its own, with gaps between the places.
type grid struct {
	*pair
	op            transport.Op
	local         *Operand
	remote        *Remote
	from, to      *Memory
	fromAt, toAt  []uint64
	bytes, stride uint64
	pieces        *transport.Pieces
}

func (p *pair) newGrid(t *testing.T, op transport.Op, n int, bytes uint64) *grid {
	t.Helper()
	g := &grid{pair: p, op: op, bytes: bytes, stride: bytes + fit(p.c, 48)}
	g.local, g.remote = p.operands(t, uint64(n)*g.stride)
	g.pieces = &transport.Pieces{Bytes: bytes}
	random := seeded(t)
	for i, j := range random.Perm(n) {
		g.pieces.LocalAt = append(g.pieces.LocalAt, uint64(i)*g.stride)
		g.pieces.RemoteAt = append(g.pieces.RemoteAt, uint64(j)*g.stride)
	}
	g.from, g.to, g.fromAt, g.toAt = g.local.Memory, g.remote.Memory, g.pieces.LocalAt, g.pieces.RemoteAt
	if op == transport.Read {
		g.from, g.to, g.fromAt, g.toAt = g.to, g.from, g.toAt, g.fromAt
	}
	g.from.Fill(tagMoved, 0, g.from.Size)
	g.to.Fill(tagBefore, 0, g.to.Size)
	return g
}

// slices cuts the grid into slices of per pieces, less where that is more than the transport takes.
func (g *grid) slices(rail transport.Rail, per int) (list []*transport.Slice) {
	per = max(1, min(per, int(g.a.Info.SliceMax/g.bytes)))
	for first := 0; first < len(g.pieces.LocalAt); first += per {
		n := min(per, len(g.pieces.LocalAt)-first)
		s := g.c.Slice(g.op, rail, g.local, 0, g.remote, 0, uint64(n)*g.bytes)
		s.Pieces, s.First = g.pieces, uint32(first)
		list = append(list, s)
	}
	return list
}

// check requires pieces [first, end) to have moved, and their gaps to be whole.
func (g *grid) check(t *testing.T, first, end int) {
	t.Helper()
	seen := g.to.Seen()
	for i := first; i < end; i++ {
		require.NoError(t, seen.Check(tagMoved, g.fromAt[i], g.toAt[i], g.bytes), "%s of piece %d", g.op, i)
		require.NoError(t, seen.Check(tagBefore, g.toAt[i]+g.bytes, g.toAt[i]+g.bytes, g.stride-g.bytes),
			"behind piece %d", i)
	}
}

func testPieces(t *testing.T, h Harness) {
	p := newPair(t, h)
	for _, c := range []struct {
		bytes  uint64
		n, per int
	}{{1, 3000, 3000}, {8, 5000, 2048}, {100, 1000, 999}, {4096, 300, 64}, {70_001, 40, 7}, {700_001, 6, 4}} {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			t.Run(fmt.Sprintf("%s/%d", op, c.bytes), func(t *testing.T) {
				g := p.newGrid(t, op, c.n, min(fit(p.c, c.bytes), p.a.Info.SliceMax))
				p.c.Must(t, g.slices(p.c.Rail(t), c.per)...)
				g.check(t, 0, c.n)
			})
		}
	}
}

// testPiecesOutside puts one slice between good ones; its last piece leaves the region.
func testPiecesOutside(t *testing.T, h Harness) {
	p := newPair(t, h)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		const n, per = 30, 5
		g := p.newGrid(t, op, n, fit(p.c, 1000))
		list := g.slices(p.c.Rail(t), per)
		bad := *g.pieces
		bad.RemoteAt = append([]uint64(nil), bad.RemoteAt...)
		bad.RemoteAt[14] = g.remote.Size - g.bytes + p.a.Info.Alignment
		list[2].Pieces = &bad
		require.Equal(t, len(list), p.c.Send(list...))
		for i, end := range p.c.Wait(t, list...) {
			if i != 2 {
				require.Nil(t, end.Err)
				g.check(t, i*per, (i+1)*per)
				continue
			}
			require.NotNil(t, end.Err)
			require.Contains(t, []errs.Code{errs.InvalidArgument, errs.AddressNotRegistered}, end.Err.Code, "%v",
				end.Err)
			require.Equal(t, errs.ScopeSlice, end.Err.Scope)
		}
	}
}

func testPiecesWithdrawn(t *testing.T, h Harness) {
	p := newPair(t, h)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		const n, per = 400, 20
		for range 5 {
			g := p.newGrid(t, op, n, fit(p.c, 20_000))
			list := g.slices(p.c.Rail(t), per)
			per := (n + len(list) - 1) / len(list)
			list = list[:p.c.Submit(list...)]
			p.a.Transport.Withdraw(list)
			var failed []int
			for i, end := range p.c.Wait(t, list...) {
				if end.Err == nil {
					g.check(t, i*per, min((i+1)*per, n))
					continue
				}
				require.Equal(t, errs.Withdrawn, end.Err.Code, "%v", end.Err)
				for k := i * per; k < min((i+1)*per, n); k++ {
					g.to.Fill(tagAfter, g.toAt[k], g.bytes)
					failed = append(failed, k)
				}
			}
			p.c.Barrier(t)
			seen := g.to.Seen()
			for _, k := range failed {
				require.NoError(t, seen.Check(tagAfter, g.toAt[k], g.toAt[k], g.bytes),
					"piece %d landed after its completion", k)
			}
		}
	}
}
