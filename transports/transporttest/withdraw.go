package transporttest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func withdrawRules() []rule {
	return []rule{
		{"WithdrawnSlicesNeverLand", nil, testWithdrawn},
		{"WithdrawnReadsNeverLand", nil, testWithdrawnReads},
		{"WithdrawOfCompletedIsIgnored", nil, testWithdrawCompleted},
		{"WithdrawLeavesNeighboursAlone", nil, testWithdrawSome},
		{"WithdrawUnderLoad", nil, testWithdrawLoad},
	}
}

func testWithdrawn(t *testing.T, h Harness)      { withdrawAll(t, h, transport.Write) }
func testWithdrawnReads(t *testing.T, h Harness) { withdrawAll(t, h, transport.Read) }

func withdrawAll(t *testing.T, h Harness, op transport.Op) {
	p := newPair(t, h)
	const n = 60
	size := fit(p.c, 100<<10)
	local, remote, _, to := p.aimed(t, op, n*size)
	withdrawn, rounds := 0, 10
	if RaceEnabled {
		rounds = 3
	}
	for range rounds {
		to.Fill(tagBefore, 0, to.Size)
		list := p.launch(op, p.c.Rail(t), local, remote, n, size)
		p.a.Transport.Withdraw(list)
		p.a.Transport.Withdraw(list) // asking again changes nothing
		failed := p.ended(t, list, to, size, errs.Withdrawn)
		withdrawn += len(failed)
		p.stillQuiet(t, to, failed, size)
	}
	t.Logf("%d of %d slices were withdrawn before they were done", withdrawn, rounds*n)
}

func testWithdrawCompleted(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 64<<10)
	local.Fill(tagMoved, 0, local.Size)
	list := p.volley(transport.Write, p.c.Rail(t), local, remote, 8, fit(p.c, 8<<10))
	p.c.Must(t, list...)
	for range 3 {
		p.a.Transport.Withdraw(list)
	}
	p.c.Barrier(t) // a second completion would have come by now, and is a complaint
	require.NoError(t, remote.Check(tagMoved, 0, 0, 8*fit(p.c, 8<<10)))
}

// testWithdrawSome withdraws every third slice; the others must succeed on the same rail.
func testWithdrawSome(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 60
	size := fit(p.c, 50_000)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		local, remote, _, to := p.aimed(t, op, n*size)
		list := p.launch(op, p.c.Rail(t), local, remote, n, size)
		var some []*transport.Slice
		for i := 0; i < len(list); i += 3 {
			some = append(some, list[i])
		}
		p.a.Transport.Withdraw(some)
		for i, end := range p.c.Wait(t, list...) {
			at := uint64(i) * size
			if end.Err != nil {
				require.Zero(t, i%3, "slice %d was not withdrawn: %v", i, end.Err)
				require.Equal(t, errs.Withdrawn, end.Err.Code, "%v", end.Err)
				continue
			}
			require.NoError(t, to.Check(tagMoved, at, at, size))
		}
		require.Contains(t, p.c.Rails(), list[0].Rail, "a withdrawal costs no rail")
	}
}

// testWithdrawLoad submits and withdraws at random from several threads, and looks again at the end.
func testWithdrawLoad(t *testing.T, h Harness) {
	p := newPair(t, h)
	seeds := seeded(t)
	size := fit(p.c, 30_000)
	const threads, rounds, n = 4, 25, 12
	var wait sync.WaitGroup
	var all [threads][]*transport.Slice
	var locals [threads]*Operand
	var remotes [threads]*Remote
	rail := p.c.Rail(t)
	for thread := range threads {
		local, remote := p.a.Register(t, rounds*n*size, mem.LocalReadWrite), p.b.Register(t, rounds*n*size,
			mem.GlobalReadWrite)
		local.Fill(tagMoved, 0, local.Size)
		locals[thread], remotes[thread] = local, p.c.Import(t, remote)
		random := rand.New(rand.NewPCG(seeds.Uint64(), 0))
		wait.Go(func() {
			for round := range uint64(rounds) {
				var list []*transport.Slice
				for i := range uint64(n) {
					at := (round*n + i) * size
					list = append(list, p.c.Slice(transport.Write, rail, local, at, remotes[thread], at,
						1+random.Uint64N(size)/p.a.Info.Alignment*p.a.Info.Alignment))
				}
				for _, s := range list {
					s.Length = fit(p.c, s.Length)
				}
				sent := list[:p.c.Send(list...)]
				all[thread] = append(all[thread], sent...)
				random.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
				p.a.Transport.Withdraw(sent[:random.IntN(len(sent)+1)])
			}
		})
	}
	wait.Wait()
	for thread, list := range all {
		m := remotes[thread].Memory
		var failed []*transport.Slice
		for _, end := range p.c.Wait(t, list...) {
			if s := end.Slice; end.Err == nil {
				require.NoError(t, m.Check(tagMoved, s.Remote, s.Remote, s.Length))
			} else {
				require.Equal(t, errs.Withdrawn, end.Err.Code, "%v", end.Err)
				m.Fill(tagAfter, s.Remote, s.Length)
				failed = append(failed, s)
			}
		}
		p.c.Barrier(t)
		for _, s := range failed {
			require.NoError(t, m.Check(tagAfter, s.Remote, s.Remote, s.Length))
		}
	}
}
