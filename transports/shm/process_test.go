package shm

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/host/vm"
)

// Tests across processes: a child is an owner of memory, and answers the calls of its peer here.

func TestMain(m *testing.M) {
	if runOther() || forked.RunChild(new(Owner)) {
		return
	}
	os.Exit(m.Run())
}

// Owner is the transport of another process, with the memory that it offered last.
type Owner struct {
	alone
	memory   []byte
	mu       sync.Mutex
	refusals string
}

// Opening are the owner's settings, and the state of its process.
type Opening struct {
	Trust  string
	Hidden bool // prctl(PR_SET_DUMPABLE, 0)
	Proc   bool // /proc of its own, as in a container
}

// Message is a call of a peer.
type Message struct {
	From transport.Peer
	Text []byte
}

// Answer is the end of a call.
type Answer struct {
	Text   []byte
	Code   errs.Code
	Reason string
}

// Offer is memory that the owner is to register.
type Offer struct {
	Bytes      uint64
	Allocated  bool
	Permission mem.Permission
}

// Found are the bytes of the memory, and the notes about peers that were refused.
type Found struct {
	Bytes    []byte
	Refusals string
}

// Refused keeps the reason.
func (o *Owner) Refused(why transport.Refusal, _ string, cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refusals += fmt.Sprintf("%v: %v\n", why, cause)
}

// Open starts the transport.
func (o *Owner) Open(s Opening, who *transport.Peer) error {
	if s.Hidden {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
	}
	if s.Proc {
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return err
		}
	}
	tr, err := Factory{}.Open(context.Background(), Settings{Trust: s.Trust}, o, o)
	if err != nil {
		return err
	}
	o.tr = tr.(*Transport)
	*who = o.Self()
	who.Address, who.Self = "owner:1", false
	return nil
}

// Serve answers a call.
func (o *Owner) Serve(m Message, a *Answer) error {
	text, err := o.tr.Serve(context.Background(), m.From, m.Text)
	if a.Text = text; err != nil {
		a.Code, a.Reason = errs.CodeOf(err), err.Error()
	}
	return nil
}

// Spare changes how long a grant is kept that nobody has come for.
func (o *Owner) Spare(limit time.Duration, _ *forked.Nothing) error {
	o.tr.Spare(limit)
	return nil
}

// Register offers memory.
func (o *Owner) Register(w Offer, d *transport.Descriptor) (err error) {
	region := mem.Region{Size: w.Bytes, Fd: -1}
	if w.Allocated {
		region, err = o.tr.Allocate(transport.Allocation{Size: w.Bytes, Location: "cpu:0"})
	} else {
		var b []byte
		b, err = unix.Mmap(-1, 0, int(w.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		region.Addr = mem.AddressOf(b)
	}
	if err != nil {
		return err
	}
	region.Permission = w.Permission
	o.memory = mem.Bytes(region.Addr, int(region.Size))
	_, *d, err = o.tr.Register(context.Background(), region)
	return err
}

// Lose makes the user's memory go, without a word.
func (o *Owner) Lose(forked.Nothing, *forked.Nothing) error {
	return unix.Mprotect(o.memory, unix.PROT_NONE)
}

// Look returns the memory and the notes.
func (o *Owner) Look(_ forked.Nothing, f *Found) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	*f = Found{o.memory, o.refusals}
	return nil
}

// peer is an owner in a process of its own, as its peer here sees it. It is a Host and a recording Sink for that one
// link.
type peer struct {
	transport.Peer
	*forked.Child
	t     testing.TB
	tr    *Transport
	link  transport.Link
	ups   chan transport.RailInfo
	downs chan *errs.Error
	ends  chan transport.Completion
}

// startOwner starts a process that may be changed before, and a transport here.
func startOwner(t testing.TB, s Settings, theirs Opening, changes ...forked.Change) *peer {
	t.Helper()
	p := &peer{t: t, ups: make(chan transport.RailInfo, 8), downs: make(chan *errs.Error, 8),
		ends: make(chan transport.Completion, 1024)}
	// Some tests run as a user without a right to the program's folder.
	byHandle := func(c *exec.Cmd) { c.Path = "/proc/self/exe" }
	var err error
	p.Child, err = forked.Start(append([]forked.Change{byHandle}, changes...)...)
	require.NoError(t, err)
	t.Cleanup(p.Kill)
	p.ask("Open", theirs, &p.Peer)
	tr, err := Factory{}.Open(context.Background(), s, p, p)
	require.NoError(t, err)
	p.tr = tr.(*Transport)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	return p
}

// ask calls a method of the owner.
func (p *peer) ask(method string, argument, result any) {
	p.t.Helper()
	require.NoError(p.t, p.Child.Call("Owner."+method, argument, result))
}

func (p *peer) Self() transport.Peer {
	return transport.Peer{Address: "initiator:1", ID: transport.NumberedID(9)}
}

func (p *peer) Describe(transport.LocalKey, transport.Descriptor) {}
func (p *peer) Refused(transport.Refusal, string, error)          {}
func (p *peer) Log() *slog.Logger                                 { return slog.New(slog.DiscardHandler) }
func (p *peer) Addresses() []netip.Addr                           { return nil }
func (p *peer) Call(_ context.Context, _ transport.Peer, message []byte) ([]byte, error) {
	var a Answer
	if err := p.Child.Call("Owner.Serve", Message{p.Self(), message}, &a); err != nil {
		return nil, errs.Wrap(errs.PeerUnreachable, "call", err).WithScope(errs.ScopeLink, errs.SideUnknown)
	}
	if a.Code != errs.OK {
		return nil, errs.New(a.Code, "call", "%s", a.Reason).WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return a.Text, nil
}
func (p *peer) Complete(list []transport.Completion) {
	for _, c := range list {
		p.ends <- c
	}
}
func (p *peer) Ready(transport.Rail)                                        {}
func (p *peer) Progress(transport.Rail)                                     {}
func (p *peer) RailUp(i transport.RailInfo)                                 { p.ups <- i }
func (p *peer) RailDown(transport.Rail, *errs.Error)                        {}
func (p *peer) LinkDown(_ transport.Link, cause *errs.Error)                { p.downs <- cause }
func (p *peer) Fenced(transport.Link, transport.RemoteKey, transport.Epoch) {}
func (p *peer) Notified(transport.Peer, []byte) bool                        { return true }

// next waits for something that must come soon.
func next[T any](t testing.TB, from chan T) T {
	t.Helper()
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	select {
	case v := <-from:
		return v
	case <-late.C:
		require.FailNow(t, "waited in vain")
		panic("not reached")
	}
}

// attach greets the owner; the rail, or why there is none.
func (p *peer) attach() (transport.Rail, *errs.Error) {
	p.t.Helper()
	var err error
	p.link, err = p.tr.Attach(p.Peer)
	require.NoError(p.t, err)
	select {
	case up := <-p.ups:
		return up.Rail, nil
	case cause := <-p.downs:
		return transport.Rail{}, cause
	case <-time.NewTimer(10 * time.Second).C:
		require.FailNow(p.t, "neither up nor down")
		panic("not reached")
	}
}

const testBytes = 1 << 20

// exchange writes to a region of the owner and reads it back.
func (p *peer) exchange(rail transport.Rail, remote transport.RemoteKey) (write, read *errs.Error) {
	p.t.Helper()
	from, to := area(p.t, testBytes), area(p.t, testBytes)
	clear(to)
	for i, b := range [][]byte{from, to} {
		key, _, err := p.tr.Register(context.Background(), mem.Region{Addr: mem.AddressOf(b), Size: testBytes, Fd: -1})
		require.NoError(p.t, err)
		s := &transport.Slice{Op: transport.Op(1 - i), Rail: rail, LocalKey: key, RemoteKey: remote,
			Local: mem.AddressOf(b), Length: testBytes}
		require.Equal(p.t, 1, p.tr.Submit([]*transport.Slice{s}))
		end := next(p.t, p.ends)
		require.Same(p.t, s, end.Slice)
		if i == 0 {
			write = end.Err
		} else {
			read = end.Err
		}
		require.NoError(p.t, p.tr.Deregister(context.Background(), key))
	}
	if write == nil && read == nil {
		require.Equal(p.t, from, to)
		require.Equal(p.t, from, p.look().Bytes)
	}
	return write, read
}

// look returns the owner's memory, and its notes about peers that it refused.
func (p *peer) look() (f Found) {
	p.t.Helper()
	p.ask("Look", forked.Nothing{}, &f)
	return f
}

func (p *peer) offer(allocated bool, permission mem.Permission) (d transport.Descriptor) {
	p.t.Helper()
	p.ask("Register", Offer{testBytes, allocated, permission}, &d)
	return d
}

func TestBothKindsOfMemoryOfAnotherProcess(t *testing.T) {
	p := startOwner(t, Settings{}, Opening{})
	rail, down := p.attach()
	require.Nil(t, down)
	for _, allocated := range []bool{true, false} {
		remote, err := p.tr.Import(p.link, p.offer(allocated, mem.GlobalReadWrite))
		require.NoError(t, err)
		require.Equal(t, allocated, p.tr.links.Lookup(p.link).find(remote).base != 0, "mapped")
		write, read := p.exchange(rail, remote)
		require.Nil(t, write)
		require.Nil(t, read)
	}
	require.Contains(t, p.tr.Explain(p.link), "1 files are mapped")
}

func TestReadOnlyMemoryIsMappedForReadingOnly(t *testing.T) {
	p := startOwner(t, Settings{}, Opening{})
	rail, down := p.attach()
	require.Nil(t, down)
	remote, err := p.tr.Import(p.link, p.offer(true, mem.GlobalReadOnly))
	require.NoError(t, err)
	write, read := p.exchange(rail, remote)
	require.Equal(t, errs.PermissionDenied, write.Code)
	require.Nil(t, read)
	from := p.tr.links.Lookup(p.link).find(remote)
	require.NotZero(t, from.base)
	fault := p.tr.copier.Copy(from.base, mem.AddressOf(area(t, 8)), 8, 8)
	require.NotNil(t, fault, "the mapping itself can be written")
}

// Memory that the owner lost without unregistering it fails the request; the rail, the link and both processes live on.
func TestLostMemoryFailsItsRequest(t *testing.T) {
	p := startOwner(t, Settings{}, Opening{})
	rail, down := p.attach()
	require.Nil(t, down)
	good, err := p.tr.Import(p.link, p.offer(false, mem.GlobalReadWrite))
	require.NoError(t, err)
	lost, err := p.tr.Import(p.link, p.offer(false, mem.GlobalReadWrite))
	require.NoError(t, err)
	p.ask("Lose", forked.Nothing{}, &forked.Nothing{})
	write, read := p.exchange(rail, lost)
	for _, e := range []*errs.Error{write, read} {
		require.NotNil(t, e)
		require.Equal(t, errs.AddressNotRegistered, e.Code)
		require.Equal(t, errs.SideRemote, e.Side)
		require.Equal(t, errs.ScopeSlice, e.Scope)
	}
	b := area(t, 4096)
	key, _, err := p.tr.Register(context.Background(), mem.Region{Addr: mem.AddressOf(b), Size: 4096, Fd: -1})
	require.NoError(t, err)
	s := &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: key, RemoteKey: good, Local: mem.AddressOf(b),
		Length: 4096}
	require.True(t, p.tr.Inline([]*transport.Slice{s}), "the rail lives on")
}

// A process that ends is heard of at once, also while nothing is under way.
func TestKilledOwnerIsHeardOf(t *testing.T) {
	p := startOwner(t, Settings{}, Opening{})
	_, down := p.attach()
	require.Nil(t, down)
	begin := time.Now()
	p.Kill()
	cause := next(t, p.downs)
	require.Less(t, time.Since(begin), time.Second)
	require.Equal(t, errs.PeerUnreachable, cause.Code)
	require.Equal(t, errs.SideRemote, cause.Side)
	require.Contains(t, p.tr.Explain(p.link), "process has ended")
}

// A child that this process forks has none of the memory: no slot would speak for it.
func TestForkedChildrenHaveNothing(t *testing.T) {
	p := startOwner(t, Settings{}, Opening{})
	_, down := p.attach()
	require.Nil(t, down)
	remote, err := p.tr.Import(p.link, p.offer(true, mem.GlobalReadWrite))
	require.NoError(t, err)
	own, err := p.tr.Allocate(transport.Allocation{Size: testBytes, Location: "cpu:0"})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.tr.Free(own)) }()
	for _, addr := range []uintptr{own.Addr, p.tr.links.Lookup(p.link).find(remote).base} {
		require.Contains(t, flagsOf(t, addr), " dc", "MADV_DONTFORK at %#x", addr)
	}
}

func TestYamaIsExplainedAndMappedMemoryWorks(t *testing.T) {
	for scope, says := range map[vm.Scope]string{vm.ScopeRelation: "is 1", vm.ScopeAdmin: "is 2",
		vm.ScopeAbsent: "not dumpable"} {
		p := startOwner(t, Settings{yama: &scope}, Opening{})
		rail, down := p.attach()
		require.Nil(t, down)
		_, err := p.tr.Import(p.link, p.offer(false, mem.GlobalReadWrite))
		require.ErrorContains(t, err, says)
		require.False(t, errs.From("", err).Permanent(), "another transport may serve")
		remote, err := p.tr.Import(p.link, p.offer(true, mem.GlobalReadWrite))
		require.NoError(t, err)
		write, read := p.exchange(rail, remote)
		require.Nil(t, write)
		require.Nil(t, read)
		require.Contains(t, p.tr.Explain(p.link), says)
	}
}

func TestTrustNoneIsARefusalOfEitherSide(t *testing.T) {
	p := startOwner(t, Settings{}, Opening{Trust: TrustNone})
	_, down := p.attach()
	requireRefused(t, down, oneText)
	require.Contains(t, p.look().Refusals, "trust is none", "the owner's log")
	_, err := p.tr.Import(p.link, p.offer(true, mem.GlobalReadWrite))
	require.ErrorContains(t, err, oneText)

	mine := startOwner(t, Settings{Trust: TrustNone}, Opening{})
	_, err = mine.tr.Attach(mine.Peer)
	require.ErrorContains(t, err, "trust is none")
}

// oneText is all that a peer hears which gets no page.
const oneText = "the peer does not share memory with this process"

// requireRefused checks why two processes do not share memory: for good, and nobody is said to be dead.
func requireRefused(t *testing.T, down *errs.Error, why string) {
	t.Helper()
	require.NotNil(t, down)
	require.Equal(t, errs.PermissionDenied, down.Code)
	require.Equal(t, errs.ScopeLink, down.Scope)
	require.Equal(t, errs.SidePath, down.Side)
	require.ErrorContains(t, down, why)
}
