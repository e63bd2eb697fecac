package file

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/transporttest"
)

// readers read a file from its beginning to its end, again and again and never from memory. The kernel reads ahead for
// them, by folios of many pages.
func readers(t *testing.T, path string, count int) {
	var stop atomic.Bool
	var wait sync.WaitGroup
	for range count {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		wait.Go(func() {
			defer unix.Close(fd)
			b := make([]byte, 256<<10)
			for !stop.Load() {
				for at := int64(0); ; {
					n, err := unix.Pread(fd, b, at)
					if n <= 0 || err != nil {
						break
					}
					at += int64(n)
				}
				_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
			}
		})
	}
	t.Cleanup(func() { stop.Store(true); wait.Wait() })
}

// Stripes that end inside units are read back as they were written, and are durable, while other programs read the
// file. A folio that the kernel reads ahead lies over units of both ways.
func TestStripesBesideReadersAreReadBackAndDurable(t *testing.T) {
	const size = 4 << 20
	rounds := uint64(20)
	if transporttest.RaceEnabled {
		rounds = 10
	}
	for _, stripe := range []uint64{12_345, 70_001} {
		t.Run(fmt.Sprint(stripe), func(t *testing.T) {
			r, path := newRig(t, UringFactory{}, Settings{}), onDisk(t)
			handles := [2]*opened{r.open(transport.FileSpec{Path: path, Create: true, Size: size}),
				r.open(transport.FileSpec{Path: path})}
			m := r.memory(size, true)
			readers(t, path, 2)
			for round := range rounds {
				m.fill(round, 0, size)
				var lists [2][]*transport.Slice
				for at, i := uint64(0), 0; at < size; at, i = at+stripe, i+1 {
					lists[i%2] = append(lists[i%2],
						handles[i%2].slice(transport.Write, m, at, at, min(stripe, size-at)))
				}
				for i := range lists {
					r.send(lists[i]...)
				}
				for _, end := range r.wait(slices.Concat(lists[0], lists[1])...) {
					require.Nil(t, end.Err)
				}
				for _, o := range handles {
					require.Nil(t, syncOf(r, o), "round %d", round)
				}
				m.fill(1000, 0, size)
				for at := uint64(0); at < size; at += 1 << 20 {
					r.must(handles[1].slice(transport.Read, m, at, at, 1<<20))
				}
				require.NoError(t, m.check(round, 0, 0, size), "round %d", round)
				got, err := os.ReadFile(path)
				require.NoError(t, err)
				want := make([]byte, size)
				transporttest.Pattern(want, round, 0)
				require.Equal(t, string(want), string(got), "round %d", round)
			}
		})
	}
}

// kicked is a mover that begins nothing by itself.
type kicked struct{ mover }

func (kicked) kick()        {}
func (kicked) recall(*item) {}

// turning is a transport in which a test begins and ends operations, one for each item.
type turning struct {
	t      *testing.T
	b      *base
	file   *file
	random *rand.Rand
	ways   map[*item]way
	under  []*item
}

func newTurning(t *testing.T, random *rand.Rand) *turning {
	g := &turning{t: t, b: newBase("test", Settings{Slices: 64}, nil, nil), random: random, ways: map[*item]way{},
		file: &file{card: card{transport.FileCard{Inode: 7}}}}
	g.b.mover = kicked{}
	g.b.shareInode(g.file)
	return g
}

func (g *turning) turns() *turns { return &g.file.inode.turns }

// add queues an item.
func (g *turning) add(class uint8, w way) *item {
	it := g.b.take(&transport.Slice{Op: transport.Write, Length: 1, Class: class}, new(link))
	it.file = g.file
	g.ways[it] = w
	g.b.enqueue(it)
	return it
}

// begin begins operations in the order of the queue, while there is room.
func (g *turning) begin(room func() bool) {
	for class := range kit.Classes {
		for it := g.b.queue.List(class).First(); it != nil; it = g.b.queue.List(class).First() {
			if !g.b.inTurn(it, g.ways[it]) {
				continue
			}
			g.b.joinTurn(it, g.ways[it])
			require.Equal(g.t, kit.ClassOf(it.slice.Class), it.class)
			g.b.unqueue(it)
			g.under = append(g.under, it)
			require.False(g.t, g.turns().flying[past] > 0 && g.turns().flying[through] > 0)
			if !room() {
				return
			}
		}
	}
}

// end ends one of the operations under way, and returns its item.
func (g *turning) end() *item {
	require.NotEmpty(g.t, g.under, "items wait for ever")
	i := g.random.IntN(len(g.under))
	it := g.under[i]
	g.b.endTurn(g.turns(), g.ways[it])
	g.under = slices.Delete(g.under, i, i+1)
	return it
}

// The ways of WRITEs to a file never fly together. Each item has its turn, and one that is withdrawn holds up nobody.
func TestWaysOfAFileTakeTurns(t *testing.T) {
	random := seeded(t)
	for range 200 {
		g := newTurning(t, random)
		for g.b.free.Len() > 0 {
			g.add(uint8(g.random.IntN(kit.Classes)), way(g.random.IntN(2)))
		}
		withdrawn := g.random.IntN(20)
		for left := len(g.b.items); left > 0; left-- {
			g.begin(func() bool { return g.random.IntN(4) > 0 })
			if it := g.turns().aside.First(); it != nil && withdrawn > 0 {
				withdrawn--
				require.True(t, g.b.withdraw(it, errWithdrawn))
				continue
			}
			g.end()
		}
		require.Zero(t, g.turns().aside.Len())
		g.b.leaveInode(g.file)
		require.Empty(t, g.b.inodes)
	}
}

// Items of lower classes have their turns beside a stream of HIGH that never ends. Each hand-over to their way begins
// one of them at least.
func TestTurnsAreHandedOverToLowerClasses(t *testing.T) {
	random := seeded(t)
	for round := range 200 {
		g := newTurning(t, random)
		of := func() way { return way(round % 2) }
		if round%4 > 1 { // HIGH goes both ways
			of = func() way { return way(g.random.IntN(2)) }
		}
		for range 1 + g.random.IntN(40) {
			g.add(0, of())
		}
		g.begin(func() bool { return true })
		lower := 1 + g.random.IntN(g.b.free.Len())
		for range lower {
			g.add(uint8(1+g.random.IntN(kit.Classes-1)), way(g.random.IntN(2)))
		}
		for turns, before := 0, lower; lower > 0; {
			require.LessOrEqual(t, turns, 2*before+2)
			g.begin(func() bool { return true })
			it := g.end()
			if g.turns().flying == [2]int{} {
				turns++
			}
			high := it.class == 0
			g.b.free.PushFront(it, &it.place)
			if high {
				g.add(0, of())
			} else {
				lower--
			}
		}
	}
}
