package fds

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/leaks"
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(Peer)) {
		return
	}
	os.Exit(m.Run())
}

// Peer is the process of a peer: it fetches by tickets, and uses the files.
type Peer struct{ fd int }

// Self returns the process.
func (p *Peer) Self(_ int, me *Process) error { *me = Self(); return nil }

// Ask is a fetch.
type Ask struct {
	Ticket Ticket
	Owner  Process
}

// Fetch fetches a descriptor, and returns the code of the error.
func (p *Peer) Fetch(a Ask, code *errs.Code) (err error) {
	p.fd, err = Fetch(context.Background(), a.Ticket, a.Owner)
	*code = errs.CodeOf(err)
	return nil
}

// Write writes to the descriptor that was fetched.
func (p *Peer) Write(b []byte, n *int) (err error) { *n, err = unix.Write(p.fd, b); return err }

// Flood opens connections that say nothing, as many as it is let.
func (p *Peer) Flood(to Key, n *int) error {
	for ; *n < 200; *n++ {
		if _, err := net.DialUnix("unixpacket", nil, address(to)); err != nil {
			return nil
		}
	}
	return nil
}

func serve(t *testing.T, refused func(error)) *Server {
	before, leak := leaks.Descriptors(t), goleak.IgnoreCurrent()
	s, err := Listen(Self().UID, refused)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Close()
		s.Close()
		goleak.VerifyNone(t, leak)
		require.Equal(t, before, leaks.Descriptors(t), "descriptors")
	})
	return s
}

// child starts a peer and returns its process.
func child(t *testing.T, changes ...forked.Change) (*forked.Child, Process) {
	c, err := forked.Start(changes...)
	require.NoError(t, err)
	t.Cleanup(c.Kill)
	var who Process
	require.NoError(t, c.Call("Peer.Self", 0, &who))
	return c, who
}

func fetch(t *testing.T, c *forked.Child, ticket Ticket) (code errs.Code) {
	require.NoError(t, c.Call("Peer.Fetch", Ask{ticket, Self()}, &code))
	return code
}

func write(t *testing.T, c *forked.Child, b []byte) {
	var n int
	require.NoError(t, c.Call("Peer.Write", b, &n))
	require.Equal(t, len(b), n)
}

func TestTheVeryFileArrivesInAnotherProcess(t *testing.T) {
	c, who := child(t)
	s := serve(t, nil)
	offer := func(fd int) {
		ticket, err := s.Offer(fd, who)
		require.NoError(t, err)
		require.Equal(t, errs.OK, fetch(t, c, ticket))
	}
	t.Run("eventfd", func(t *testing.T) {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		require.NoError(t, err)
		defer unix.Close(fd)
		offer(fd)
		write(t, c, binary.NativeEndian.AppendUint64(nil, 7))
		var b [8]byte
		_, err = unix.Read(fd, b[:])
		require.NoError(t, err)
		require.EqualValues(t, 7, binary.NativeEndian.Uint64(b[:]))
	})
	t.Run("pipe", func(t *testing.T) {
		var ends [2]int
		require.NoError(t, unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
		defer unix.Close(ends[0])
		offer(ends[1])
		require.NoError(t, unix.Close(ends[1]), "the server has one of its own")
		write(t, c, []byte("across"))
		b := make([]byte, 16)
		n, err := unix.Read(ends[0], b)
		require.NoError(t, err)
		require.Equal(t, "across", string(b[:n]))
	})
	t.Run("memfd", func(t *testing.T) {
		fd, err := unix.MemfdCreate("passed", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte("0123"))
		require.NoError(t, err)
		offer(fd)
		write(t, c, []byte("4567")) // one opened again would begin at 0
		b := make([]byte, 16)
		n, err := unix.Pread(fd, b, 0)
		require.NoError(t, err)
		require.Equal(t, "01234567", string(b[:n]))
	})
}

func TestStrangersGetNothing(t *testing.T) {
	c, who := child(t)
	var refused atomic.Int64
	s := serve(t, func(error) { refused.Add(1) })
	mine, err := s.Offer(0, Self())
	require.NoError(t, err)
	theirs, err := s.Offer(0, who)
	require.NoError(t, err)
	none := Ticket{Server: s.name}
	require.Equal(t, errs.PermissionDenied, fetch(t, c, mine), "another process's ticket")
	require.Equal(t, errs.PermissionDenied, fetch(t, c, none), "no ticket at all")
	require.Equal(t, errs.OK, fetch(t, c, theirs))
	s.Withdraw(theirs)
	s.Withdraw(theirs)
	require.Equal(t, errs.PermissionDenied, fetch(t, c, theirs), "a ticket that was withdrawn")
	require.Eventually(t, func() bool { return refused.Load() == 3 }, 10*time.Second, time.Millisecond) // told late
	_, err = Fetch(t.Context(), mine, who)
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(err), "a server that is not the owner's")
	_, err = Fetch(t.Context(), Ticket{}, Self())
	require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err))
}

func TestAnotherUserIsNotRead(t *testing.T) {
	leak := goleak.IgnoreCurrent()
	refused := make(chan error, 1)
	s, err := Listen(Self().UID+1, func(cause error) { refused <- cause })
	require.NoError(t, err)
	ticket, err := s.Offer(0, Self())
	require.NoError(t, err)
	_, err = Fetch(t.Context(), ticket, Self())
	require.Error(t, err)
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(<-refused))
	if os.Geteuid() == 0 {
		c, who := child(t, forked.As(65534, 65534))
		theirs, err := s.Offer(0, who)
		require.NoError(t, err)
		require.NotEqual(t, errs.OK, fetch(t, c, theirs), "with a ticket, too")
		require.Equal(t, errs.PermissionDenied, errs.CodeOf(<-refused))
		c.Kill()
	}
	s.Close()
	goleak.VerifyNone(t, leak)
}

func TestAFloodOfOneProcessLeavesOthersTheirTurn(t *testing.T) {
	flooder, _ := child(t)
	honest, who := child(t)
	s := serve(t, nil)
	ticket, err := s.Offer(0, who)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- flooder.Call("Peer.Flood", s.name, new(int)) }()
	for range 20 {
		require.Equal(t, errs.OK, fetch(t, honest, ticket))
		s.mu.Lock()
		of := map[uint32]int{} // the honest one's last connection may still be there
		for _, pid := range s.open {
			of[pid]++
		}
		s.mu.Unlock()
		for _, n := range of {
			require.LessOrEqual(t, n, processMax)
		}
	}
	require.NoError(t, <-done)
}

func TestOffersHaveABound(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur < OffersMax+64 {
		t.Skipf("the process may have %d descriptors", limit.Cur)
	}
	s := serve(t, nil)
	for range OffersMax {
		_, err := s.Offer(0, Self())
		require.NoError(t, err)
	}
	_, err := s.Offer(0, Self())
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
	_, err = s.Offer(-1, Self())
	require.Error(t, err)
	s.Close()
	_, err = s.Offer(0, Self())
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
}

// TestAnAnswerThatNobodyGivesKeepsNothing plays servers that are not ours.
func TestAnAnswerThatNobodyGivesKeepsNothing(t *testing.T) {
	for name, answer := range map[string]struct {
		bytes []byte
		fds   []int
		code  errs.Code
	}{
		"three descriptors": {[]byte{answerPassed}, []int{0, 1, 2}, errs.Protocol},
		"ten descriptors":   {[]byte{answerPassed}, []int{0, 1, 2, 0, 1, 2, 0, 1, 2, 0}, errs.Protocol},
		"none":              {[]byte{answerPassed}, nil, errs.Protocol},
		"a refusal with":    {[]byte{answerRefused}, []int{0}, errs.Protocol},
		"a long one":        {[]byte{answerPassed, 0, 0}, []int{0}, errs.Protocol},
		"an unknown one":    {[]byte{77}, []int{0}, errs.Protocol},
		"nothing":           {nil, nil, errs.PeerUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			ticket := Ticket{Server: Key([]byte(fmt.Sprintf("%-16s", name))[:16])}
			l, err := net.ListenUnix("unixpacket", address(ticket.Server))
			require.NoError(t, err)
			before := leaks.Descriptors(t)
			done := make(chan error, 1)
			go func() {
				c, err := l.AcceptUnix()
				if err == nil {
					_, _ = c.Read(make([]byte, 16))
					if answer.bytes != nil {
						_, _, err = c.WriteMsgUnix(answer.bytes, unix.UnixRights(answer.fds...), nil)
					}
					_ = c.Close()
				}
				done <- err
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err = Fetch(ctx, ticket, Self())
			require.Equal(t, answer.code, errs.CodeOf(err), "%v", err)
			require.NoError(t, <-done)
			require.Equal(t, before, leaks.Descriptors(t), "descriptors that came are closed")
			require.NoError(t, l.Close())
		})
	}
}
