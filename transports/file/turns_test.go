package file

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
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

// The ways of WRITEs to a file never fly together. Each item has its turn, and one that is withdrawn holds up nobody.
func TestWaysOfAFileTakeTurns(t *testing.T) {
	for range 200 {
		random := seeded(t)
		b := newBase("test", Settings{Slices: 64}, nil, nil)
		b.mover = kicked{}
		f := &file{card: card{transport.FileCard{Inode: 7}}}
		b.shareInode(f)
		u := &f.inode.turns
		ways, under := map[*item]way{}, []*item{}
		for b.free.Len() > 0 {
			it := b.take(&transport.Slice{Op: transport.Write, Length: 1}, new(link))
			it.file = f
			ways[it] = way(random.IntN(2))
			b.enqueue(it)
		}
		withdrawn := random.IntN(20)
		for left := len(b.items); left > 0; {
			for it := b.queue.List(0).First(); it != nil; it = b.queue.List(0).First() {
				if !b.inTurn(it, ways[it]) {
					continue
				}
				b.joinTurn(u, ways[it])
				b.unqueue(it)
				under = append(under, it)
				if random.IntN(4) == 0 {
					break // no room for more
				}
			}
			require.False(t, u.flying[past] > 0 && u.flying[through] > 0)
			if it := u.aside.First(); it != nil && withdrawn > 0 {
				withdrawn--
				left--
				require.True(t, b.withdraw(it, errWithdrawn))
				continue
			}
			require.NotEmpty(t, under, "%d items wait for ever", left)
			i := random.IntN(len(under))
			b.endTurn(u, ways[under[i]])
			under = slices.Delete(under, i, i+1)
			left--
		}
		require.Zero(t, u.aside.Len())
		b.leaveInode(f)
		require.Empty(t, b.inodes)
	}
}
