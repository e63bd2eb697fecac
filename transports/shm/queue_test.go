package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// line is a queue with one link.
func line() (*queue, *link) {
	q := &queue{}
	q.init()
	return q, &link{}
}

func (q *queue) enter(t *testing.T, l *link, class uint8, length uint64, pieces *transport.Pieces) *transport.Slice {
	t.Helper()
	s := &transport.Slice{Class: class, Length: length, Pieces: pieces}
	require.True(t, q.enterLocked(s, l, nil))
	return s
}

// eat takes bites until nothing waits and returns which slice each began with, and its bytes.
func (q *queue) eat(out *ends) (first []*transport.Slice, bytes []uint64) {
	var none [biteSlices]*errs.Error
	for b := (bite{}); q.takeLocked(&b); {
		first, bytes = append(first, b.entries[0].slice), append(bytes, b.bytes)
		q.finishLocked(&b, none[:], out)
	}
	return first, bytes
}

// HIGH waits for one bite at most, however much LOW was queued before it.
func TestHighIsTheNextBiteAfterAnyBiteOfLow(t *testing.T) {
	q, l := line()
	low := q.enter(t, l, 2, 16<<20, nil)
	var b bite
	var out ends
	var none [biteSlices]*errs.Error
	for range 3 {
		require.True(t, q.takeLocked(&b))
		require.Same(t, low, b.entries[0].slice)
		require.LessOrEqual(t, b.bytes, uint64(pieceBytes))
		high, medium := q.enter(t, l, 0, 100, nil), q.enter(t, l, 1, 100, nil)
		q.finishLocked(&b, none[:], &out)
		for _, next := range []*transport.Slice{high, medium} {
			require.True(t, q.takeLocked(&b))
			require.Same(t, next, b.entries[0].slice)
			q.finishLocked(&b, none[:], &out)
		}
	}
	_, bytes := q.eat(&out)
	require.Len(t, bytes, 16<<20/pieceBytes-3, "what was taken is not copied again")
	require.Equal(t, 7, out.n)
	require.Zero(t, q.queued.Load())
	require.Zero(t, q.classes.Waiting())
	require.Equal(t, entriesMax, q.free.Len())
}

// A bite is one look at one slot: of one link, region, direction and epoch.
func TestSlicesThatDifferAreNotOneBite(t *testing.T) {
	for name, differ := range map[string]func(s *transport.Slice, e *entry){
		"epoch":     func(s *transport.Slice, _ *entry) { s.Epoch = 1 },
		"direction": func(s *transport.Slice, _ *entry) { s.Op = transport.Write },
		"region":    func(_ *transport.Slice, e *entry) { e.from = &imported{} },
		"link":      func(_ *transport.Slice, e *entry) { e.link = &link{} },
		"nothing":   func(*transport.Slice, *entry) {},
	} {
		q, l := line()
		var b bite
		q.enter(t, l, 0, 4096, nil)
		second := q.enter(t, l, 0, 4096, nil)
		differ(second, q.findLocked(second))
		require.True(t, q.takeLocked(&b))
		want := 1
		if name == "nothing" {
			want = 2
		}
		require.Equal(t, want, b.n, name)
	}
}

func TestSmallSlicesAreOneBite(t *testing.T) {
	q, l := line()
	var out ends
	for range biteSlices {
		q.enter(t, l, 0, 4096, nil)
	}
	_, bytes := q.eat(&out)
	require.Equal(t, []uint64{biteSlices * 4096}, bytes)
	require.Equal(t, biteSlices, out.n)
	out.n = 0
	// no slice is cut for a bite that has begun with another
	for _, length := range []uint64{300 << 10, 300 << 10, 100 << 10} {
		q.enter(t, l, 0, length, nil)
	}
	_, bytes = q.eat(&out)
	require.Equal(t, []uint64{300 << 10, 400 << 10}, bytes)
}

// A bite has no more ranges than a system call takes, also where the pieces are tiny, and no piece is taken twice.
func TestBitesOfTinyPieces(t *testing.T) {
	for _, each := range []uint64{1, 24, 600 << 10} {
		q, l := line()
		n := uint64(5000)
		if each > pieceBytes {
			n = 5
		}
		pieces := &transport.Pieces{LocalAt: make([]uint64, n), RemoteAt: make([]uint64, n), Bytes: each}
		q.enter(t, l, 0, n*each, pieces)
		var out ends
		var none [biteSlices]*errs.Error
		at := uint64(0)
		for b := (bite{}); q.takeLocked(&b); {
			require.Equal(t, at, b.from)
			require.LessOrEqual(t, b.parts, biteParts)
			r := rangesOf(b.entries[0].slice, b.from, b.bytes)
			parts, moved := 0, uint64(0)
			for _, _, n := r.next(); n > 0; _, _, n = r.next() {
				parts, moved = parts+1, moved+n
			}
			require.Equal(t, b.parts, parts)
			require.Equal(t, b.bytes, moved)
			at += b.bytes
			q.finishLocked(&b, none[:], &out)
		}
		require.Equal(t, n*each, at)
		require.Equal(t, 1, out.n)
	}
}

// A slice that two copiers are at completes once, with the second one, and withdrawn as it was with an error.
func TestSlicesEndWithTheirLastCopier(t *testing.T) {
	q, l := line()
	s := q.enter(t, l, 2, 3*pieceBytes, nil)
	var one, two bite
	var out ends
	var none [biteSlices]*errs.Error
	require.True(t, q.takeLocked(&one))
	require.True(t, q.takeLocked(&two))
	e := q.findLocked(s)
	require.NotNil(t, e)
	_, ended := q.abandonLocked(e, errWithdrawn)
	require.False(t, ended)
	require.False(t, q.takeLocked(new(bite)), "the rest is not copied")
	q.finishLocked(&two, none[:], &out)
	require.Zero(t, out.n)
	q.finishLocked(&one, none[:], &out)
	require.Equal(t, 1, out.n)
	require.Same(t, errWithdrawn, out.list[0].Err)
	require.Zero(t, out.list[0].Bytes)
	require.Nil(t, q.findLocked(s), "a question about a completed slice finds nothing")
	q.enter(t, l, 0, 1, nil) // also when its entry is another's
	require.Nil(t, q.findLocked(s))
}

func TestAFullQueueTakesNoMoreAndOwesReady(t *testing.T) {
	q, l := line()
	l.Live.Store(5)
	for range slicesMax {
		q.enter(t, l, 1, 10, nil)
	}
	require.False(t, q.enterLocked(&transport.Slice{Length: 1}, l, nil))
	l.hungry, q.hungry = true, append(q.hungry, l)
	var out ends
	for b := (bite{}); q.takeLocked(&b); out.n = 0 {
		var none [biteSlices]*errs.Error
		q.finishLocked(&b, none[:], &out)
	}
	require.Equal(t, []transport.Rail{l.In(5)}, out.ready, "once")
	require.Equal(t, entriesMax, q.free.Len())
}

// The next generation may be up before the slices of a fenced one have been looked for. Its slices have not ended.
func TestAFenceEndsNoSliceOfTheNextGeneration(t *testing.T) {
	q, l := line()
	var slices []*transport.Slice
	for generation := range uint32(4) {
		s := q.enter(t, l, 0, 100, nil)
		s.Rail.Generation = generation
		slices = append(slices, s)
	}
	l.Live.Store(2)
	var out ends
	require.False(t, q.abandonLinkLocked(l, errWithdrawn, &out))
	require.Equal(t, 3, out.n)
	for _, c := range out.list[:out.n] {
		require.NotSame(t, slices[2], c.Slice)
	}
	l.Live.Store(0)
	require.False(t, q.abandonLinkLocked(l, errWithdrawn, &out))
	require.Same(t, slices[2], out.list[3].Slice)
}
