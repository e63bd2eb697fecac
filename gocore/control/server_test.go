package control

import (
	"context"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// TestAddressesBesidesAreLeftOutWhereTheyCannotBeBound: they have the port of the first address.
func TestAddressesBesidesAreLeftOutWhereTheyCannotBeBound(t *testing.T) {
	besides := []netip.Addr{netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.3")}
	hosts := func(listen string) (list []string) {
		s, err := Listen([]string{listen}, Options{Credentials: newCredentials(t), Besides: besides})
		require.NoError(t, err)
		defer s.Close(t.Context())
		_, first, err := net.SplitHostPort(s.Addresses()[0])
		require.NoError(t, err)
		for _, address := range s.Addresses() {
			host, port, err := net.SplitHostPort(address)
			require.NoError(t, err)
			require.Equal(t, first, port)
			list = append(list, host)
		}
		return list
	}
	require.Equal(t, []string{"127.0.0.1", "127.0.0.3"}, hosts("127.0.0.1:0"))
	require.Equal(t, []string{"0.0.0.0"}, hosts("0.0.0.0:0"), "the wildcard has them all")
}

func TestOnePortOnAllAddresses(t *testing.T) {
	checkLeaks(t)
	server, err := Listen([]string{"127.0.0.1:0", "127.0.0.2:0", "[::1]:0", "127.0.0.1:0"},
		Options{Credentials: newCredentials(t)})
	require.NoError(t, err)
	defer server.Close(context.Background())
	require.Len(t, server.Addresses(), 3, "an address that is given twice is one")
	_, port, err := net.SplitHostPort(server.Addresses()[0])
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:" + port, "127.0.0.2:" + port, "[::1]:" + port}, server.Addresses())

	wild, err := Listen([]string{"0.0.0.0:0", "127.0.0.1:0"}, Options{Credentials: newCredentials(t)})
	require.NoError(t, err)
	defer wild.Close(context.Background())
	require.Len(t, wild.Addresses(), 1, "the wildcard listens there already")
}

func TestAddressesThatCannotBeListenedOn(t *testing.T) {
	checkLeaks(t)
	taken, err := Listen(nil, Options{Credentials: newCredentials(t)})
	require.NoError(t, err)
	defer taken.Close(context.Background())
	for address, want := range map[string]struct {
		code errs.Code
		text string
	}{
		taken.Addresses()[0]:     {errs.RpcServiceError, "in use by another process; set rpc_server_port"},
		"192.0.2.1:0":            {errs.InvalidArgument, "set rpc_server_hostname, and the addresses of a transport"},
		"no-such-host.invalid:0": {errs.InvalidArgument, "is unknown; set rpc_server_hostname"},
		"127.0.0.1":              {errs.InvalidArgument, "missing port"},
		"127.0.0.1:x":            {errs.InvalidArgument, "not a port"},
	} {
		_, err := Listen([]string{"127.0.0.1:0", address}, Options{Credentials: newCredentials(t)})
		require.Equal(t, want.code, errs.CodeOf(err), address)
		require.ErrorContains(t, err, want.text, address)
	}
}

func TestPeersWaitUntilTheServerStarts(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	late := &node{self: a.self}
	server, err := Listen(nil, Options{Self: a.options.Self, Credentials: newCredentials(t)})
	require.NoError(t, err)
	defer server.Close(context.Background())
	result := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		close(begun)
		_, err := a.client.Open(context.Background(), server.Addresses()[0])
		result <- err
	}()
	<-begun
	server.Start(late)
	require.NoError(t, <-result)
}

func TestRandomBytesEndTheConnectionAndNothingElse(t *testing.T) {
	checkLeaks(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := mathrand.New(mathrand.NewPCG(seed, 0))
	b := start(t, "127.0.0.1:0", func(o *Options) { o.HandshakeTimeout = time.Second })
	a := start(t, "127.0.0.1:0")
	open(t, a, b)
	preface := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for i := range 60 {
		raw, err := net.Dial("tcp", b.self.Address)
		require.NoError(t, err)
		conn := raw
		for i%4 > 1 { // a peer, as far as TLS can tell; on a busy machine its handshake may come too late
			if conn, _, err = a.options.Credentials.Connect(within(t), raw); err == nil {
				break
			}
			raw.Close()
			raw, err = net.Dial("tcp", b.self.Address)
			require.NoError(t, err)
		}
		junk := make([]byte, random.IntN(3000))
		for j := range junk {
			junk[j] = byte(random.Uint32())
		}
		if i%2 == 0 {
			junk = append([]byte(preface[:random.IntN(len(preface)+1)]), junk...)
		}
		conn.Write(junk) // may fail: the server hangs up as soon as it has seen enough
		raw.(*net.TCPConn).CloseWrite()
		raw.SetReadDeadline(time.Now().Add(patience))
		_, err = io.Copy(io.Discard, raw)
		require.True(t, err == nil || strings.Contains(err.Error(), syscall.ECONNRESET.Error()), "seed %d: %v", seed,
			err)
		raw.Close()
	}
	require.Equal(t, b.self, open(t, a, b))
	require.Eventually(t, func() bool { return b.server.guests.count() == 1 }, patience, time.Millisecond)
}

// The bound of strangers is TestTheOldestStrangerLeavesFirst's.
func TestSilentVisitorsAreClosedAfterTheirTime(t *testing.T) {
	checkLeaks(t)
	b := start(t, "127.0.0.1:0", func(o *Options) { o.HandshakeTimeout = 300 * time.Millisecond })
	var conns []net.Conn
	for range 4 {
		conn, err := net.Dial("tcp", b.self.Address)
		require.NoError(t, err)
		defer conn.Close()
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.SetReadDeadline(time.Now().Add(patience))
		_, err := io.Copy(io.Discard, conn)
		require.True(t, err == nil || strings.Contains(err.Error(), syscall.ECONNRESET.Error()), "%v", err)
	}
	open(t, start(t, "127.0.0.1:0"), b)
}

// TestIdleCostsNoCPU measures the whole process over a while in which a server and a client are open and connected.
func TestIdleCostsNoCPU(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	open(t, a, b)
	best := time.Hour
	for range 5 { // the collector or another test's remains may run once
		before := processTime(t)
		<-time.After(100 * time.Millisecond)
		best = min(best, processTime(t)-before)
	}
	require.Less(t, best, 2*time.Millisecond)
}

func processTime(t testing.TB) time.Duration {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
