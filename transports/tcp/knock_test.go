package tcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// liar is a host with a peer that answers every hello by an offer of the test's.
type liar struct {
	*endpoint
	offer  offer
	hellos atomic.Int32
}

func (l *liar) Call(_ context.Context, _ transport.Peer, message []byte) ([]byte, error) {
	if len(message) < 2 || message[1] != callHello {
		return append(beginAnswer(version, l.offer.owner), 0), nil
	}
	l.hellos.Add(1)
	return l.offer.append(beginAnswer(version, l.offer.owner), version), nil
}

// newLiar opens a transport with such a host.
func newLiar(t *testing.T, s Settings, o offer) (*liar, *Transport) {
	l := &liar{endpoint: newTestEndpoint(t, Settings{}), offer: o}
	opened, err := Factory{}.Open(context.Background(), s, l, l)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close(context.Background())) })
	return l, opened.(*Transport)
}

// TestAPeerCannotMakeUsKnockEverywhere opens a peer with an offer of the ports of a third party, which takes
// connections and says nothing useful.
func TestAPeerCannotMakeUsKnockEverywhere(t *testing.T) {
	third, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = third.Close() })
	var knocks atomic.Int32
	go func() { // ends with the listener
		for {
			c, err := third.Accept()
			if err != nil {
				return
			}
			knocks.Add(1)
			_ = c.Close()
		}
	}()
	l, tr := newLiar(t, Settings{}, offer{owner: transport.NumberedID(5), requests: 64, bytes: 1 << 30,
		addresses: []netip.AddrPort{netip.MustParseAddrPort(third.Addr().String())}})
	link, err := tr.Attach(transport.Peer{Address: "127.0.0.1:9", ID: transport.NumberedID(5)})
	require.NoError(t, err)
	l.await(t, "LinkDown", 5*time.Second, func() bool { return l.dead != nil })
	require.Eventually(t, func() bool { return knocks.Load() == knockBurst }, 5*time.Second, time.Millisecond)
	due := make(chan clock.Time)
	at := tr.links.Lookup(link)
	at.runOnLink(func(now clock.Time) { due <- clock.Time(at.dialDue(now).Sub(now)) })
	require.Greater(t, time.Duration(<-due), knockEvery/2, "the next try is near")
	require.EqualValues(t, knockBurst, knocks.Load(), "each try is one connection")
}

func TestAnEndpointIsTriedEightTimesAMinuteUntilItProvesItself(t *testing.T) {
	var e farEnd
	tries, now := 0, clock.Time(5*time.Hour)
	begin := now
	for ; now < begin.Add(time.Minute); now = now.Add(time.Millisecond) {
		if now >= e.mayKnock() {
			e.knocked(now)
			tries++
		}
	}
	require.Equal(t, 8, tries)
	e.proved = true
	require.Zero(t, e.mayKnock())
}

// TestOnlyAPeerOfThisHostNamesItsLoopback also refuses endpoints that are no host's.
func TestOnlyAPeerOfThisHostNamesItsLoopback(t *testing.T) {
	require.True(t, isHere("127.0.0.1:5"))
	require.True(t, isHere("[::1]:5"))
	require.False(t, isHere("192.0.2.1:5"))
	for _, a := range ownSubnets() {
		require.True(t, isHere(netip.AddrPortFrom(a.Addr(), 5).String()))
	}
	for text, good := range map[string]bool{"10.0.0.1:1": true, "[2001:db8::1]:1": true, "10.0.0.1:0": false,
		"0.0.0.0:1": false, "[::]:1": false, "224.0.0.1:1": false, "169.254.169.254:80": false} {
		require.Equal(t, good, plain(netip.MustParseAddrPort(text)), text)
	}
	l, tr := newLiar(t, Settings{}, offer{owner: transport.NumberedID(5), requests: 64, bytes: 1 << 30,
		addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}})
	link, err := tr.Attach(transport.Peer{Address: "192.0.2.1:9", ID: transport.NumberedID(5)})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return l.hellos.Load() > 1 }, 5*time.Second, time.Millisecond)
	require.Empty(t, *tr.links.Lookup(link).rails.Load())
}

// TestAPeerWithoutRoomForASliceIsRefused: READs would wait to their limit for room that never comes.
func TestAPeerWithoutRoomForASliceIsRefused(t *testing.T) {
	l, tr := newLiar(t, Settings{}, offer{owner: transport.NumberedID(5), requests: 64, bytes: 1,
		addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}})
	link, err := tr.Attach(transport.Peer{Address: "127.0.0.1:9", ID: transport.NumberedID(5)})
	require.NoError(t, err)
	l.await(t, "LinkDown", 5*time.Second, func() bool { return l.dead != nil })
	require.Equal(t, errs.NoRoute, l.dead.Code, "%v", l.dead)
	require.Contains(t, l.dead.Error(), "transports/tcp/credit_bytes")
	require.Empty(t, *tr.links.Lookup(link).rails.Load())
}

// TestARefusedCallerLearnsOneText: our counters know more.
func TestARefusedCallerLearnsOneText(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	texts := map[string]bool{}
	for _, message := range [][]byte{{version, 99}, {version, callAsk, 1}, {version, callWanted}} {
		_, err := e.tr.Serve(context.Background(), visitor, message)
		require.Error(t, err)
		texts[err.Error()] = true
	}
	require.Len(t, texts, 1)
	require.EqualValues(t, 3, e.refused(transport.RefusedMalformed))
	_, err := e.tr.Serve(context.Background(), visitor, []byte{version + 1, callHello})
	require.ErrorContains(t, err, "version", "a caller of another version has to know")
	require.EqualValues(t, 1, e.refused(transport.RefusedVersion))
}

// A try that found no descriptor here has sent nothing, and its cause is our own limit.
func TestATryWithoutADescriptorIsNoKnock(t *testing.T) {
	tr := newTestEndpoint(t, Settings{}).tr.(*Transport)
	l := tr.newLink(visitor)
	r := &rail{link: l, local: netip.MustParseAddr("127.0.0.1"), remote: netip.MustParseAddrPort("127.0.0.1:9")}
	l.rails.Store(&[]*rail{r})
	now := clock.Time(time.Hour)
	for range 2 * knockBurst {
		require.LessOrEqual(t, l.farEndOf(r).mayKnock(), now)
		l.farEndOf(r).knocked(now)
		l.dialEnded(r, &dial{t: tr, link: l, remote: r.remote}, fmt.Errorf("socket: %w", unix.EMFILE), now)
	}
	e := l.dialError()
	require.Equal(t, errs.TooManyRequests, e.Code)
	require.Equal(t, errs.SideLocal, e.Side)
	require.Contains(t, e.Error(), "ulimit -n")
	r.lastErr = unconnected{r.remote, unix.EHOSTUNREACH}
	require.Equal(t, errs.PeerUnreachable, l.dialError().Code)
	require.Equal(t, errs.SidePath, l.dialError().Side)
	require.Contains(t, l.dialError().Hint, "127.0.0.1:9, transports/tcp/port", "a firewall knows ports")
	r.lastErr = fmt.Errorf("challenge: %w", unix.ETIMEDOUT)
	require.Empty(t, l.dialError().Hint, "the port is open")
}
