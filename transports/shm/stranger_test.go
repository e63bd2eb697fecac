package shm

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/leaks"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/transporttest"
)

var stranger = transport.Peer{Address: "stranger:1", ID: transport.NumberedID(0x5742)}

// lies are claims of a stranger. Most of them are about processes that are there.
func lies(t *testing.T, owner *Transport) map[string]manifest.Claim {
	t.Helper()
	stat, err := os.ReadFile("/proc/1/stat")
	require.NoError(t, err)
	began, err := strconv.ParseUint(string(bytes.Fields(stat[bytes.LastIndexByte(stat, ')'):])[20]), 10, 64)
	require.NoError(t, err)
	stdin, err := vm.FileOf(0)
	require.NoError(t, err)
	honest := owner.Manifest.Claims(owner.Me)
	other := honest.File
	other.Ino++
	with := func(f vm.File) manifest.Claim {
		return manifest.Claim{PID: honest.PID, Started: honest.Started, File: f}
	}
	return map[string]manifest.Claim{
		"nobody":                      {},
		"the first process":           {PID: 1, Started: began},
		"the first process, a guess":  {PID: 1, Started: began + 1},
		"a process that is not there": {PID: 1 << 22, Started: 5},
		"a number of no process":      {PID: 1 << 31},
		"the owner itself":            honest,
		"the owner, a guess":          {PID: honest.PID, Started: honest.Started - 1, File: honest.File},
		"the owner, its input":        with(stdin),
		"the owner, no file":          with(vm.File{Fd: 1 << 20}),
		"the owner, another file":     with(other),
	}
}

// noted is the host of an owner: it keeps the reasons of refusals.
type noted struct {
	alone
	mu      sync.Mutex
	reasons map[string]bool
	counts  map[transport.Refusal]int
}

func (n *noted) Log() *slog.Logger { return slog.New(slog.DiscardHandler) }
func (n *noted) Refused(why transport.Refusal, from string, cause error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reasons[cause.Error()] = true
	n.counts[why]++
}

func newNoted(t *testing.T, s Settings) *noted {
	n := &noted{reasons: map[string]bool{}, counts: map[transport.Refusal]int{}}
	tr, err := Factory{}.Open(context.Background(), s, n, n)
	require.NoError(t, err)
	n.tr = tr.(*Transport)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	return n
}

// A stranger may name any process and hears one sentence: nothing about the processes of this host can be learned by
// asking. The owner's log has the reasons.
func TestStrangersLearnNothingAboutProcesses(t *testing.T) {
	owner := newNoted(t, Settings{})
	closed := newNoted(t, Settings{Trust: TrustNone})
	said := map[string]bool{}
	for what, claim := range lies(t, owner.tr) {
		for _, n := range []*noted{owner, closed} {
			answer, err := n.tr.Serve(context.Background(), stranger, access.Hello(version, access.NewToken(), claim))
			require.Nil(t, answer, what)
			require.Equal(t, errs.PermissionDenied, errs.CodeOf(err), what)
			said[err.Error()] = true
		}
	}
	require.Len(t, said, 1, "%v", said)
	require.Greater(t, len(owner.reasons), 5, "%v", owner.reasons)
	require.Equal(t, len(lies(t, owner.tr)), owner.counts[transport.RefusedHost])
}

// Strangers that greet without end get no page, no descriptor stays open, none becomes the one tracer, and an honest
// peer attaches meanwhile.
func TestHonestPeersAttachAmongStrangers(t *testing.T) {
	const greetings = 1500
	h := harness(t, reachAll, false)
	h.Patience = 2 * time.Second
	w := transporttest.NewWorld(t, h)
	near, far := w.Open("near"), w.Open("far")
	owner := far.Transport.(*Transport)
	all := lies(t, owner)
	before := leaks.Descriptors(t)
	var stop atomic.Bool
	var count atomic.Int64
	var attackers sync.WaitGroup
	defer attackers.Wait()
	defer stop.Store(true)
	for range 4 {
		attackers.Go(func() {
			for !stop.Load() {
				for _, claim := range all {
					_, _ = owner.Serve(context.Background(), stranger, access.Hello(version, access.NewToken(), claim))
					count.Add(1)
				}
			}
		})
	}
	w.Await(t, "greetings", func() bool { return count.Load() >= greetings })
	link := near.Connect(t, far)
	local, remote := near.Register(t, 4096, mem.LocalReadWrite), link.Import(t, far.Register(t, 4096,
		mem.GlobalReadWrite))
	link.Must(t, link.Slice(transport.Write, link.Rail(t), local, 0, remote, 0, 4096))
	stop.Store(true)
	attackers.Wait()
	require.Equal(t, 1, owner.Grants())
	require.LessOrEqual(t, leaks.Descriptors(t), before+2*access.GrantFiles+4, "files of the one link")
	require.Nil(t, tracers.named)
}

// A peer of our own user has a bound, too, and hears that it may try again.
func TestPagesOfOnePeerAreBounded(t *testing.T) {
	owner := newNoted(t, Settings{})
	owner.tr.Spare(time.Hour)
	greet := func() error {
		_, err := owner.tr.Serve(context.Background(), owner.Self(),
			access.Hello(version, access.NewToken(), manifest.Claim{}))
		return err
	}
	for range access.GrantsPerPeer {
		require.NoError(t, greet())
	}
	err := greet()
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
	owner.tr.Bound(access.GrantsPerPeer)
	require.ErrorContains(t, greet(), "peers are attached already")
	require.Equal(t, 2, owner.counts[transport.RefusedLimit])
}

// A peer that has no room now is asked again.
func TestLinkWaitsForRoomAtItsPeer(t *testing.T) {
	a, _, _ := newAlone(t, Settings{})
	a.tr.Bound(1)
	number, err := a.tr.Attach(a.Self())
	require.NoError(t, err)
	l := a.tr.links.Lookup(number)
	<-l.Greeted()
	require.Nil(t, l.Gone())
	a.tr.Bound(2)
	next(t, a.up)
}

// deaf is an engine that loses its messages about leaving.
type deaf struct{ alone }

func (d *deaf) Call(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
	if message[1] == access.CallLeave {
		return nil, errs.New(errs.Timeout, "call", "lost")
	}
	return d.alone.Call(ctx, to, message)
}

// A page goes although the message that its peer has left is lost: the page itself says so.
func TestLostGoodbyesLeaveNoPages(t *testing.T) {
	d := &deaf{alone{up: make(chan transport.RailInfo, 8)}}
	tr, err := Factory{}.Open(context.Background(), Settings{}, d, d)
	require.NoError(t, err)
	d.tr = tr.(*Transport)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	for range 2 * access.GrantsPerPeer {
		number, err := tr.Attach(d.Self())
		require.NoError(t, err)
		next(t, d.up)
		l := d.tr.links.Lookup(number)
		tr.Detach(number)
		<-l.Done()
		require.Equal(t, 1, d.tr.Grants())
	}
}

// overheard is an engine with a greeting that somebody has read.
type overheard struct {
	alone
	tokens [2]access.Token // of the link, and the one that it was given
}

func (o *overheard) Call(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
	answer, err := o.alone.Call(ctx, to, message)
	if message[1] == access.CallHello {
		o.tokens = [2]access.Token{access.Token(message[2:18]), access.Token(answer[1:17])}
	}
	return answer, err
}

// Only the peer that was given a token may use it.
func TestTokensAreOfNoUseToOthers(t *testing.T) {
	o := &overheard{alone: alone{up: make(chan transport.RailInfo, 8)}}
	tr, err := Factory{}.Open(context.Background(), Settings{}, o, o)
	require.NoError(t, err)
	o.tr = tr.(*Transport)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	number, err := tr.Attach(o.Self())
	require.NoError(t, err)
	next(t, o.up)
	for i, kind := range []byte{access.CallGoodbye, access.CallLeave} {
		_, err := tr.Serve(context.Background(), stranger, access.Call(version, kind, o.tokens[i]))
		require.NoError(t, err)
	}
	require.Equal(t, 1, o.tr.Grants())
	require.Nil(t, o.tr.links.Lookup(number).Gone())
}

// A file that can become shorter is not mapped.
func TestFilesThatCanBecomeShorterAreNotMapped(t *testing.T) {
	fd, err := unix.MemfdCreate("tent-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	_, err = new(Transport).mapFile(fd, mapped{}, false)
	require.ErrorContains(t, err, "can become shorter")
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	require.NoError(t, err)
	m, err := new(Transport).mapFile(fd, mapped{}, false)
	require.NoError(t, err)
	require.NoError(t, unix.MunmapPtr(mem.Pointer(m.addr), m.size))
}
