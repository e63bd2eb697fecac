package tcp

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

func TestARailThatCameBackIsFoundSoon(t *testing.T) {
	const start = clock.Time(time.Hour)
	r := &rail{trip: time.Millisecond, since: start.Add(-time.Minute)}
	r.scheduleRedial(start)
	require.Equal(t, start, r.due, "the first try is made at once")
	require.Equal(t, scoutMin, r.scouting(start))
	last := scoutMin
	for age := time.Millisecond; age < time.Hour; age *= 2 {
		every := r.scouting(start.Add(age))
		require.GreaterOrEqual(t, every, last)
		require.LessOrEqual(t, every, max(scoutMin, age/16), "the search adds a sixteenth of the outage at most")
		require.LessOrEqual(t, every, scoutMost)
		last = every
	}
	for i, now := 0, start; i < 1000; i++ { // turned away at once each time
		r.scheduleRetry(now, now)
		require.LessOrEqual(t, r.due.Sub(now), scoutMost*5/4)
		require.GreaterOrEqual(t, r.due.Sub(now), pauseMin*3/4, "no try follows the one before without a pause")
		now = r.due
	}
	require.Zero(t, (&rail{}).scouting(start), "a rail that has never been up dials all its lanes at once")
}

// An answer that takes long comes before its socket goes for another one.
func TestASocketOfATryWaitsForSomeRoundTrips(t *testing.T) {
	now := clock.Time(time.Hour)
	for trip := time.Microsecond; trip < 2*time.Second; trip *= 2 {
		for _, r := range []*rail{{since: now}, {since: now.Add(-time.Hour)}, {since: now, set: &laneSet{}}} {
			r.trip = trip
			require.GreaterOrEqual(t, (scoutsMost-1)*r.scouting(now), scoutTrips*trip*9/10)
		}
	}
}

// The queue of a listener is full, so that no SYN is answered, as on a rail that went silent.
func TestATryHasFewSockets(t *testing.T) {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(listener)) }()
	require.NoError(t, unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(listener, 0))
	name, err := unix.Getsockname(listener)
	require.NoError(t, err)
	full := false
	for range 8 {
		c, err := net.DialTimeout("tcp", addrPort(name).String(), 50*time.Millisecond)
		if full = err != nil; full {
			break
		}
		defer func() { require.NoError(t, c.Close()) }()
	}
	require.True(t, full)
	tr := newTestEndpoint(t, Settings{}).tr.(*Transport)
	d := &dial{t: tr, link: tr.newLink(visitor), local: netip.MustParseAddr("127.0.0.1"), remote: addrPort(name),
		every: time.Millisecond}
	before := openSockets(t, nil)
	ended := make(chan error)
	go func() { ended <- d.scout(time.Now().Add(time.Hour)) }()
	first, seen := map[string]bool{}, map[string]bool{}
	for looks := 0; len(seen) < len(first)+3*scoutsMost; {
		now := openSockets(t, before)
		maps.Copy(seen, now)
		if looks < 2 && len(now) > 0 { // one look may miss the oldest: sockets come while it goes through the list
			looks++
			maps.Copy(first, now)
		}
	}
	d.obsolete.Store(true)
	require.ErrorIs(t, <-ended, unix.ECANCELED)
	require.Len(t, d.fds, scoutsMost)
	left := openSockets(t, before)
	require.Len(t, left, scoutsMost, "those that went are closed")
	oldest, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", d.fds[0]))
	require.NoError(t, err)
	require.Contains(t, first, oldest, "it waits on, for an answer over a way that got longer")
	maps.DeleteFunc(left, func(s string, _ bool) bool { return !first[s] })
	require.Equal(t, map[string]bool{oldest: true}, left, "the others went")
	for _, fd := range d.fds {
		require.NoError(t, unix.Close(fd))
	}
}

// openSockets are those of the process but for some, by the names that /proc has for them.
func openSockets(t *testing.T, but map[string]bool) map[string]bool {
	names, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	found := map[string]bool{}
	for _, name := range names {
		if s, err := os.Readlink(name); err == nil && strings.HasPrefix(s, "socket:") && !but[s] {
			found[s] = true
		}
	}
	return found
}

func TestARailThatFlapsDoesNotSpin(t *testing.T) {
	now := clock.Time(time.Hour)
	r := &rail{since: now.Add(-time.Minute)}
	for i := range 20 {
		r.scheduleRedial(now)
		if i > 6 {
			require.GreaterOrEqual(t, r.due.Sub(now), tryMost*3/4)
		}
		now = r.due.Add(time.Millisecond) // up, and broken again a millisecond later
		r.since = r.due
	}
	now = now.Add(steady)
	r.scheduleRedial(now)
	require.Equal(t, now, r.due, "a second of good service is enough to be tried at once again")
}

func TestAlternatesAreDialledWhileARailOfTheirEndsIsDown(t *testing.T) {
	now := clock.Time(time.Hour)
	defaults, err := settled(nil)
	require.NoError(t, err)
	l := &link{t: &Transport{settings: defaults}}
	var rails []*rail
	ends := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"),
		netip.MustParseAddr("10.0.0.3")}
	add := func(i, j int, alternate bool) *rail {
		r := &rail{link: l, index: uint16(len(rails)), local: ends[i], remote: netip.AddrPortFrom(ends[j], 1),
			alternate: alternate, since: now, trip: 1}
		r.set = &laneSet{rail: r}
		rails = append(rails, r)
		return r
	}
	first, _, _ := add(0, 0, false), add(1, 1, false), add(2, 2, false)
	near, far, other := add(0, 1, true), add(1, 0, true), add(1, 2, true)
	l.rails.Store(&rails)
	require.Zero(t, l.wantedFrom(first))
	for _, r := range []*rail{near, far, other} {
		require.Equal(t, clock.Never, l.wantedFrom(r), "everything is up")
	}
	first.set, first.since = nil, now
	for _, r := range []*rail{near, far} {
		require.Equal(t, now.Add(alternateAfter), l.wantedFrom(r))
	}
	require.Equal(t, clock.Never, l.wantedFrom(other), "both its ends are served")
	over := append(rails, &rail{link: l, local: netip.MustParseAddr("10.0.0.9"), remote: near.remote, alternate: true})
	l.rails.Store(&over)
	require.Zero(t, l.wantedFrom(over[len(over)-1]), "an end that no rail has")
}

// A rail that is up shows that the peer lives, although another one is refused and the control plane is silent.
func TestAPeerWithARailIsNotGone(t *testing.T) {
	for _, up := range []bool{true, false} {
		tr := newTestEndpoint(t, Settings{}).tr.(*Transport)
		l := tr.newLink(visitor)
		rails := []*rail{{link: l}, {link: l, lastErr: unix.ECONNREFUSED}}
		if up {
			rails[0].set = &laneSet{rail: rails[0]}
		}
		l.rails.Store(&rails)
		l.known, l.callErr = true, unix.ECONNREFUSED
		l.checkGone(clock.Now())
		require.Equal(t, !up, l.state == linkDead)
		rails[0].set = nil
	}
}

// Nor where the control plane is refused, as a question about a broken lane may be. Another incarnation is proof.
func TestAPeerWithARailIsNotGoneWhenACallIsRefused(t *testing.T) {
	refused := errs.Wrap(errs.PeerUnreachable, "call", unix.ECONNREFUSED).WithScope(errs.ScopeLink, errs.SideRemote)
	restarted := errs.New(errs.PeerRestarted, "call", "another").WithScope(errs.ScopeLink, errs.SideRemote)
	for _, up := range []bool{true, false} {
		for err, proof := range map[*errs.Error]bool{refused: false, restarted: true} {
			l := newTestEndpoint(t, Settings{}).tr.(*Transport).newLink(visitor)
			rails := []*rail{{link: l}}
			l.rails.Store(&rails)
			l.known = true
			if up {
				rails[0].set = &laneSet{rail: rails[0]}
			}
			l.callEnded(nil, err, nil, clock.Now())
			require.Equal(t, proof || !up, l.state == linkDead, "%v, with a rail: %v", err, up)
			rails[0].set = nil
		}
	}
}

// A dial proves itself by the attachment of its offer. The peer has forgotten that when it has made another offer.
func TestADialOfAnEarlierOfferBringsNothingUp(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	tr := e.tr.(*Transport)
	l := tr.newLink(visitor)
	l.offer.attachment = attachmentID{2}
	r := &rail{link: l, local: netip.MustParseAddr("127.0.0.1"), remote: netip.MustParseAddrPort("127.0.0.1:9")}
	l.rails.Store(&[]*rail{r})
	fd, peer := connection(t)
	d := &dial{t: tr, link: l, remote: r.remote, fds: []int{fd}, greeting: greeting{attachment: attachmentID{1}}}
	l.dialEnded(r, d, nil, clock.Now())
	require.Nil(t, r.set)
	require.Empty(t, d.fds)
	n, err := unix.Read(peer, make([]byte, 1))
	require.NoError(t, err)
	require.Zero(t, n, "its connection is closed")
}

// A link without an answer has no cause to name.
func TestALinkIsDescribedBeforeItsFirstAnswer(t *testing.T) {
	l := newTestEndpoint(t, Settings{}).tr.(*Transport).newLink(visitor)
	l.rails.Store(&[]*rail{{link: l, local: netip.MustParseAddr("127.0.0.1"),
		remote: netip.MustParseAddrPort("127.0.0.2:9")}})
	require.Equal(t, "tcp to "+visitor.Address+": no answer yet\n  rail 0 127.0.0.1-127.0.0.2:9: down, 0 tries",
		l.described())
	l.callErr = unix.ECONNREFUSED
	require.Contains(t, l.described(), "no answer yet (connection refused)")
}
