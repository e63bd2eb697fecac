package tcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// meet hands the far end of a fresh connection to an endpoint, as accept does, and returns the near end.
func meet(t *testing.T, tr *Transport, from netip.Addr, said []byte) (near int) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(pair[0]) })
	if len(said) > 0 {
		_, err = unix.Write(pair[0], said)
		require.NoError(t, err)
	}
	tr.meetStranger(tr.newWorker(), pair[1], from)
	return pair[0]
}

// ends reports whether the other end of a connection has closed it, after it has said n bytes at least.
func ends(t *testing.T, fd, n int) bool {
	b := make([]byte, 4096)
	got, err := unix.Read(fd, b)
	for ; err == nil && got > 0; got, err = unix.Read(fd, b) {
		n -= got
	}
	require.LessOrEqual(t, n, 0, "bytes are missing")
	return err != unix.EAGAIN
}

func (s *strangers) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// greetingOf is the HELLO of a lane of the visitor.
func greetingOf(o offer, lane uint64) []byte {
	return greeting{magic: magic, version: version, attachment: o.attachment, nonce: newNonce()}.hello(lane)
}

// A peer says HELLO at once, so it never stands among the strangers, where others would push it out. One that says less
// does, and a refused one is closed by the time that it was read.
func TestAPeerIsNoStranger(t *testing.T) {
	e := newTestEndpoint(t, Settings{Greeting: time.Minute})
	tr, from := e.tr.(*Transport), netip.MustParseAddr("192.0.2.1")
	hello := greetingOf(e.offerTo(t, visitor), 1)
	var met []int
	e.onRefusal = func(transport.Refusal) { met = append(met, tr.strangers.len()) } // in the middle of the first read
	strange := meet(t, tr, from, greetingOf(offer{}, 1))
	require.True(t, ends(t, strange, 0))
	require.Equal(t, []int{0}, met)
	require.Zero(t, tr.strangers.len())

	peer := meet(t, tr, from, hello)
	require.Zero(t, tr.strangers.len())
	var silent []int
	for i := range 2*strangersOfHost + 1 {
		silent = append(silent, meet(t, tr, from, hello[:i%3]))
		require.Equal(t, min(i+1, strangersOfHost), tr.strangers.len())
	}
	for i, fd := range silent {
		require.Equal(t, i < len(silent)-strangersOfHost, ends(t, fd, 0), "the oldest go: %d", i)
	}
	require.False(t, ends(t, peer, headerBytes+challengeSize), "the peer has its challenge and its connection")
}

// A stranger that is picked to go while a worker reads its HELLO is promised nothing. After a challenge its peer would
// take the lane for open, and lose the slices on it.
func TestAStrangerThatIsPickedGetsNoChallenge(t *testing.T) {
	e := newTestEndpoint(t, Settings{Greeting: time.Minute})
	tr, from := e.tr.(*Transport), netip.MustParseAddr("192.0.2.1")
	o := e.offerTo(t, visitor)
	hello := greetingOf(o, 1)
	near := meet(t, tr, from, hello[:1])
	lane := tr.strangers.dropOldest() // by a worker that is kept from its processor before it drops the lane
	require.NotNil(t, lane)
	lane.readMu.Lock()
	_, err := unix.Write(near, hello[1:])
	require.NoError(t, err)
	_, open := lane.drain(tr.newWorker(), submitBudget)
	lane.readMu.Unlock()
	require.False(t, open)
	lane.drop()
	n, _ := unix.Read(near, make([]byte, 1))
	require.LessOrEqual(t, n, 0, "no challenge")
	a := tr.attachments.lookUp(o.attachment, visitor.ID)
	require.Empty(t, a.allLanes(), "nothing is left of it")
}

// Of too many lanes without a proof, the oldest is closed by the worker that read the newest. A goroutine for each
// would leave a flood more descriptors than the process has.
func TestALaneThatGoesForAnotherIsClosedAtOnce(t *testing.T) {
	const most = 8
	e := newTestEndpoint(t, Settings{LanesPerPeer: most, Greeting: time.Minute})
	tr, o := e.tr.(*Transport), e.offerTo(t, visitor)
	var lanes []int
	for i := range 3 * most {
		lanes = append(lanes, meet(t, tr, netip.MustParseAddr("192.0.2.1"), greetingOf(o, uint64(i+1))))
		require.Equal(t, min(i+1, most), tr.conns.Len(), "descriptors")
	}
	for i, fd := range lanes {
		require.Equal(t, i < len(lanes)-most, ends(t, fd, headerBytes+challengeSize), "the oldest go: %d", i)
	}
}
