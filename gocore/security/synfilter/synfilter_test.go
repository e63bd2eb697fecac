package synfilter

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const never = 1 << 31 // SYNs for one that passes

// plain listens without multipath TCP, which takes no filter.
func plain(address string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	return config.Listen(context.Background(), "tcp", address)
}

// listen accepts connections until the test ends.
func listen(t *testing.T, address string) *net.TCPListener {
	t.Helper()
	l, err := plain(address)
	if err != nil {
		t.Skip(err) // a machine without IPv6
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wait.Wait() })
	return l.(*net.TCPListener)
}

// dial opens connections side by side, and returns how many there are in time.
func dial(from string, to net.Addr, n int, limit time.Duration) int {
	dialer := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	var done atomic.Int64
	var wait sync.WaitGroup
	for range n {
		wait.Go(func() {
			if conn, err := dialer.Dial("tcp", to.String()); err == nil {
				done.Add(1)
				_ = conn.Close()
			}
		})
	}
	wait.Wait()
	return int(done.Load())
}

const (
	patience = 20 * time.Second
	soon     = 300 * time.Millisecond // before a SYN is sent again
)

// The networks of a filter get no connection, and all others get theirs.
func TestAListedNetworkGetsNoConnection(t *testing.T) {
	for _, c := range []struct{ listens, from, other, network string }{
		{"127.0.0.1:0", "127.0.0.2", "127.0.0.3", "127.0.0.2/32"},
		{"[::]:0", "127.0.0.2", "127.0.0.3", "127.0.0.2/32"},
		{"[::1]:0", "::1", "", "::/64"},
	} {
		t.Run(c.listens+" "+c.network, func(t *testing.T) {
			l := listen(t, c.listens)
			to := l.Addr()
			if c.from != "::1" {
				to = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: to.(*net.TCPAddr).Port}
			}
			listed := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("2001:db8::/64"),
				netip.MustParsePrefix(c.network), netip.MustParsePrefix("2001:db8:1::/64")}
			require.Equal(t, 1, dial(c.from, to, 1, patience), "before")
			require.NoError(t, Attach(l, listed, never))
			require.Zero(t, dial(c.from, to, 4, soon))
			if c.other != "" {
				require.Equal(t, 4, dial(c.other, to, 4, patience), "another network")
			}
			require.NoError(t, Attach(l, listed[:2], never))
			require.Equal(t, 4, dial(c.from, to, 4, patience), "off the list")
			require.NoError(t, Attach(l, nil, never))
			require.NoError(t, Attach(l, nil, never), "it has none")
			require.Equal(t, 4, dial(c.from, to, 4, patience), "without a filter")
		})
	}
}

// Some SYNs pass, so that an honest peer of a listed network is served in the end.
func TestOneInSomePasses(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	require.NoError(t, Attach(l, []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}, 4))
	n := dial("127.0.0.2", l.Addr(), 256, soon)
	t.Logf("%d of 256 at once", n)
	require.InDelta(t, 64, n, 48)
}

// Connections of a listed network that are there go on. Their sockets have the filter of the listener.
func TestConnectionsThatAreThereGoOn(t *testing.T) {
	l, err := plain("127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, Attach(l.(*net.TCPListener), []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}, 8))
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: 20 * time.Millisecond}
	late := time.Now().Add(patience)
	here, err := dialer.Dial("tcp", l.Addr().String())
	for err != nil && time.Now().Before(late) {
		here, err = dialer.Dial("tcp", l.Addr().String())
	}
	require.NoError(t, err)
	there, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, there.SetDeadline(late))
	require.NoError(t, here.SetDeadline(late))
	sent := make([]byte, 1<<20)
	sent[len(sent)-1] = 1
	go func() { _, _ = here.Write(sent); _ = here.Close() }()
	got, err := io.ReadAll(there)
	require.NoError(t, err)
	require.Equal(t, sent, got)
	_ = there.Close()
}

// A filter of too many networks is one of the first, and the kernel takes it.
func TestAFilterIsBounded(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	var many []netip.Prefix
	for i := range 2 * NetworksMost {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 1}), 32),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 7: byte(i)}), 64))
	}
	require.NoError(t, Attach(l, many, 16))
	require.Equal(t, 4, dial("127.0.0.2", l.Addr(), 4, patience))
}
