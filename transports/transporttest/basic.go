package transporttest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// pair is the world of most tests: two nodes, the first attached to the second.
type pair struct {
	w    *World
	a, b *Node
	c    *Conn
}

func newPair(t *testing.T, h Harness) *pair {
	t.Helper()
	w := NewWorld(t, h)
	a, b := w.Open("a"), w.Open("b")
	return pairOf(a.Connect(t, b))
}

// pairOf is the pair of a link.
func pairOf(c *Conn) *pair { return &pair{w: c.Node.w, a: c.Node, b: c.To, c: c} }

// operands registers memory of the given size at both ends.
func (p *pair) operands(t *testing.T, size uint64) (*Operand, *Remote) {
	t.Helper()
	local, remote := p.a.Register(t, size, mem.LocalReadWrite), p.b.Register(t, size, mem.GlobalReadWrite)
	return local, p.c.Import(t, remote)
}

// aimed is operands for an operation, with the memory that it reads, which holds the pattern to be moved, and the one
// that it writes.
func (p *pair) aimed(t *testing.T, op transport.Op, size uint64) (local *Operand, remote *Remote, from, to *Memory) {
	t.Helper()
	local, remote = p.operands(t, size)
	if from, to = local.Memory, remote.Memory; op == transport.Read {
		from, to = to, from
	}
	from.Fill(tagMoved, 0, from.Size)
	to.Fill(tagBefore, 0, to.Size)
	return local, remote, from, to
}

// volley makes n slices of length bytes side by side.
func (p *pair) volley(op transport.Op, rail transport.Rail, local *Operand, remote *Remote, n int,
	length uint64) []*transport.Slice {
	list := make([]*transport.Slice, n)
	for i := range list {
		at := uint64(i) * length
		list[i] = p.c.Slice(op, rail, local, at, remote, at, length)
	}
	return list
}

// launch is volley and one Submit; it returns the slices that were accepted.
func (p *pair) launch(op transport.Op, rail transport.Rail, local *Operand, remote *Remote, n int,
	length uint64) []*transport.Slice {
	list := p.volley(op, rail, local, remote, n, length)
	return list[:p.c.Submit(list...)]
}

// arrive waits for slices of a volley and requires each to have brought its bytes.
func (p *pair) arrive(t *testing.T, list []*transport.Slice, to *Memory, size uint64) {
	t.Helper()
	p.c.Succeed(t, list...)
	for i := range list {
		require.NoError(t, to.Check(tagMoved, uint64(i)*size, uint64(i)*size, size), "slice %d", i)
	}
}

// seeded gives the random numbers of a test, from TENT_TEST_SEED or anew, and prints the seed when the test fails.
func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TENT_TEST_SEED"); text != "" {
		parsed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "TENT_TEST_SEED")
		seed = parsed
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("TENT_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// tags of patterns: of the memory before, of the moved bytes, of those that its owner writes afterwards.
const (
	tagBefore = 1
	tagMoved  = 2
	tagAfter  = 3
)

func basicRules() []rule {
	return []rule{
		{"InfoIsComplete", nil, testInfo},
		{"DescriptorsThatAreNotOursAreRefused", nil, testForeignDescriptor},
		{"ServeRefusesWhatIsNotItsOwn", nil, testServeGarbage},
	}
}

func testInfo(t *testing.T, h Harness) {
	n := NewWorld(t, h).Open("a")
	info := n.Transport.Info()
	require.NotEmpty(t, info.Name)
	require.NotZero(t, info.SliceMax)
	require.NotZero(t, info.SliceBest)
	require.LessOrEqual(t, info.SliceBest, info.SliceMax)
	require.NotZero(t, info.Alignment)
	require.Zero(t, info.Alignment&(info.Alignment-1), "a power of two")
	require.Zero(t, info.SliceMax%info.Alignment)
	require.Positive(t, info.SlicesMax)
	require.NotEqual(t, [mem.KindCount][mem.KindCount]bool{}, info.Pairs, "it moves nothing")
	require.Equal(t, info, n.Transport.Info(), "Info is fixed after Open")
}

func testForeignDescriptor(t *testing.T, h Harness) {
	p := newPair(t, h)
	good := p.b.Register(t, 4096, mem.GlobalReadWrite).Descriptor
	bad := []transport.Descriptor{nil, {}, {0}, []byte("not a descriptor at all, and long enough to hold one"),
		good[:len(good)-1], good[:1]}
	random := seeded(t)
	for range 50 {
		bad = append(bad, noise(random, 2*len(good)))
	}
	for _, d := range bad {
		_, err := p.a.Transport.Import(p.c.Link, d)
		require.Error(t, err, "%x", d)
	}
	_, err := p.a.Transport.Import(p.c.Link+1000, good)
	require.Error(t, err, "a link that does not exist")
	p.c.Import(t, &Operand{Descriptor: good, Node: p.b})
}

// noise is fewer than most random bytes.
func noise(random *rand.Rand, most int) []byte {
	b := make([]byte, random.IntN(most))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func testServeGarbage(t *testing.T, h Harness) {
	p := newPair(t, h)
	random := seeded(t)
	for range 200 {
		message := noise(random, 128)
		if len(message) > 0 && random.IntN(2) == 0 {
			message[0] &= 7 // closer to a kind of message
		}
		_, _ = p.b.Transport.Serve(t.Context(), p.a.Peer, message) // an error or an answer, no crash
	}
	local, remote := p.operands(t, 4096)
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, fit(p.c, 4096)))
}
