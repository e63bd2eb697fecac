package control

import (
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

// lobby is a table of guests without sockets.
type lobby struct {
	*guests
	refusals map[transport.Refusal]int
}

func newLobby(l Limits) *lobby {
	b := &lobby{refusals: map[transport.Refusal]int{}}
	o := Options{Limits: l.withDefaults(),
		Refused: func(r transport.Refusal, _ string, _ error) { b.refusals[r]++ }}
	b.guests = newGuests(&o)
	return b
}

// visit makes a connection from a host. Its port is its name.
func (b *lobby) visit(host string, port int) *guest {
	ours, theirs := net.Pipe()
	theirs.Close()
	return b.admit(from{ours, &net.TCPAddr{IP: net.ParseIP(host), Port: port}})
}

func (b *lobby) identify(t *testing.T, g *guest, id uint64) (isNew bool) {
	_, isNew, err := b.identified(g, transport.NumberedID(id))
	require.NoError(t, err)
	return isNew
}

type from struct {
	net.Conn
	at net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.at }

// speaks has a guest send a byte.
func (b *lobby) speaks(g *guest) {
	g.spoke.Store(true)
	b.listens(g)
}

// there returns the guests that are there.
func (b *lobby) there() (list []*guest) {
	for at := b.all.Front(); at != nil; at = at.Next() {
		list = append(list, at.Value.(*guest))
	}
	return list
}

// ports lists the guests that are there.
func (b *lobby) ports() (list []int) {
	for _, g := range b.there() {
		_, port, _ := net.SplitHostPort(g.Conn.RemoteAddr().String())
		n, _ := strconv.Atoi(port)
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

func TestTheOldestSilentConnectionOfAHostLeavesFirst(t *testing.T) {
	b := newLobby(Limits{SilentPerHost: 2})
	b.visit("10.0.0.2", 9) // another host's
	for port := 1; port <= 4; port++ {
		g := b.visit("10.0.0.1", port)
		if port == 2 {
			b.speaks(g)
		}
	}
	require.Equal(t, []int{1, 2, 3, 4, 9}[1:], b.ports(), "1 was the oldest of three silent ones")
	require.Equal(t, 1, b.refusals[transport.RefusedLimit])
}

func TestTheOldestStrangerLeavesFirst(t *testing.T) {
	b := newLobby(Limits{Strangers: 2, SilentPerHost: 100})
	for port := 1; port <= 4; port++ {
		g := b.visit("10.0.0.1", port)
		b.speaks(g)
		if port == 1 {
			b.identify(t, g, 1)
		}
	}
	require.Equal(t, []int{1, 3, 4}, b.ports(), "an engine stays, and the oldest of three strangers leaves")
	require.Equal(t, 2, b.strangers.all)
}

// A host that fills the table with strangers closes its own connections, and those of no other host. Of IPv6 a network
// of 64 bits is one host.
func TestStrangersMakeRoomAmongTheirOwn(t *testing.T) {
	for name, flood := range map[string]func(i int) string{
		"one address":         func(int) string { return "10.0.0.9" },
		"one network of IPv6": func(i int) string { return "2001:db8::" + strconv.FormatInt(int64(i), 16) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newLobby(Limits{Strangers: 8})
			for port := range 3 {
				b.speaks(b.visit("10.0.0.1", port))
			}
			for port := 10; port < 60; port++ {
				b.speaks(b.visit(flood(port), port))
			}
			require.Equal(t, []int{0, 1, 2, 55, 56, 57, 58, 59}, b.ports())
		})
	}
}

func TestAFullTableDropsTheConnectionThatWasIdleLongest(t *testing.T) {
	b := newLobby(Limits{Connections: 3})
	var all []*guest
	for port := 1; port <= 3; port++ {
		g := b.visit("10.0.0.1", port)
		b.speaks(g)
		b.identify(t, g, uint64(port))
		all = append(all, g)
	}
	b.begin(all[0]) // a call under way
	b.begin(all[1])
	b.end(&reception{guest: all[1]}) // one that has ended after 3 came
	b.speaks(b.visit("10.0.0.1", 4))
	require.Equal(t, []int{1, 2, 4}, b.ports())
	for _, g := range b.there() {
		if g.caller == nil {
			b.identify(t, g, 4)
		}
		b.begin(g)
	}
	require.Nil(t, b.visit("10.0.0.1", 5), "all have calls under way")
	require.Equal(t, []int{1, 2, 4}, b.ports())
}

func TestAnEngineHasAFewConnections(t *testing.T) {
	b := newLobby(Limits{ConnectionsPerPeer: 2})
	for port := 1; port <= 3; port++ {
		g := b.visit("10.0.0.1", port)
		b.speaks(g)
		require.Equal(t, port == 1, b.identify(t, g, 1))
	}
	require.Equal(t, []int{2, 3}, b.ports())
	for _, g := range b.there() {
		b.begin(g)
	}
	busy := b.visit("10.0.0.1", 4)
	b.speaks(busy)
	_, _, err := b.identified(busy, transport.NumberedID(1))
	require.ErrorContains(t, err, "more than 2 connections")
	require.True(t, b.connected(transport.NumberedID(1)))
	b.close(true)
	require.False(t, b.connected(transport.NumberedID(1)))
	require.Empty(t, b.callers)
	require.Zero(t, b.strangers.all+b.received)
}

// The connection with the most bytes of unfinished messages leaves when all of them are more than the limit.
func TestUnfinishedMessagesAreBoundedInTotal(t *testing.T) {
	b := newLobby(Limits{Reception: 1000})
	hog, honest := b.visit("10.0.0.1", 1), b.visit("10.0.0.1", 2)
	b.begin(hog)
	message := &reception{guest: honest}
	b.begin(honest)
	b.receive(hog, 900)
	b.receive(honest, 100)
	require.Equal(t, []int{1, 2}, b.ports(), "at the limit")
	b.receive(honest, 1)
	require.Equal(t, []int{2}, b.ports())
	require.Equal(t, 101, b.received)
	b.arrived(message)
	require.Zero(t, b.received)
	b.receive(honest, 5000)
	require.Zero(t, b.received, "bytes between messages do not count")
	b.end(message)
	require.Zero(t, honest.calls+int(honest.receiving.Load()))
}

// A second's worth passes at once, then the rate; a call beyond the limit is not charged.
func TestCallsPassAtTheirRate(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	for range 100 {
		require.LessOrEqual(t, p.take(now, 1, 100, time.Second), time.Duration(0))
	}
	require.Equal(t, 10*time.Millisecond, p.take(now, 1, 100, time.Second))
	require.Equal(t, time.Second+time.Millisecond*10, p.take(now, 100, 100, time.Second))
	require.Equal(t, 20*time.Millisecond, p.take(now, 1, 100, time.Second), "the one before was not charged")
	require.Equal(t, 5020*time.Millisecond, p.take(now, 500, 100, 0), "without a limit it is")
	require.LessOrEqual(t, p.take(now.Add(time.Minute), 100, 100, time.Second), time.Duration(0))
}

// A call may reach its handler when its connection has just been closed. That makes nobody a caller again: the engine
// would count as connected for ever.
func TestAGuestThatHasLeftIsNobodysConnection(t *testing.T) {
	options := Options{}.withDefaults()
	s := newGuests(&options)
	near, far := net.Pipe()
	defer far.Close()
	g := s.admit(near)
	require.NoError(t, g.Close())
	first, isNew, err := s.identified(g, transport.ID{1})
	require.NoError(t, err)
	require.False(t, first || isNew)
	require.False(t, s.connected(transport.ID{1}))
	require.Zero(t, s.strangers.all)
}
