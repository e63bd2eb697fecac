package shm

import (
	"context"
	"encoding/gob"
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
	"github.com/tent-engine/tent/transports/host/vm"
)

// Tests across processes: the test binary runs itself as an owner of memory, which answers the calls of its peer here
// over its standard input and output.

const ownerEnv = "TENT_SHM_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		ownerMain()
		return
	}
	os.Exit(m.Run())
}

// order is a wish to the owner: open a transport, answer a call, or offer memory.
type order struct {
	Open       *ownerSettings
	From       transport.Peer
	Call       []byte
	Offer      uint64 // bytes
	Allocated  bool
	Permission mem.Permission
	Lose       bool // the user's memory goes, without a word
}

type ownerSettings struct {
	Trust  string
	Hidden bool // prctl(PR_SET_DUMPABLE, 0)
	Proc   bool // /proc of its own, as in a container
}

type report struct {
	Peer       transport.Peer
	Answer     []byte
	Descriptor transport.Descriptor
	Bytes      []byte // of the memory that was offered last, for an empty order
	Refusals   string // of the owner, with their reasons
	Code       errs.Code
	Text       string
}

// ownerMain is the owner's process. It ends when its standard input does.
func ownerMain() {
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	o := &owner{}
	for {
		var todo order
		if in.Decode(&todo) != nil {
			return
		}
		r, err := o.carryOut(&todo)
		if err != nil {
			r.Code, r.Text = errs.CodeOf(err), err.Error()
		}
		_ = out.Encode(r)
	}
}

type owner struct {
	alone
	memory   []byte
	refusals string
}

func (o *owner) Refused(why transport.Refusal, _ string, cause error) {
	o.refusals += fmt.Sprintf("%v: %v\n", why, cause)
}

func (o *owner) carryOut(todo *order) (r report, err error) {
	ctx := context.Background()
	switch {
	case todo.Open != nil:
		if todo.Open.Hidden {
			_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
		}
		if todo.Open.Proc {
			if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
				return r, err
			}
		}
		tr, err := Factory{}.Open(ctx, Settings{Trust: todo.Open.Trust}, o, o)
		if err != nil {
			return r, err
		}
		o.tr = tr.(*Transport)
		r.Peer = transport.Peer{Address: "owner:1", ID: transport.NumberedID(7)}
	case todo.Call != nil:
		r.Answer, err = o.tr.Serve(ctx, todo.From, todo.Call)
	case todo.Offer > 0:
		region := mem.Region{Size: todo.Offer, Fd: -1}
		if todo.Allocated {
			region, err = o.tr.Allocate(todo.Offer, "cpu:0")
		} else {
			var b []byte
			b, err = unix.Mmap(-1, 0, int(todo.Offer), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			region.Addr = addressOf(b)
		}
		if err != nil {
			return r, err
		}
		region.Permission = todo.Permission
		o.memory = mem.Bytes(region.Addr, int(region.Size))
		_, r.Descriptor, err = o.tr.Register(ctx, region)
	case todo.Lose:
		err = unix.Mprotect(o.memory, unix.PROT_NONE)
	default:
		r.Bytes, r.Refusals = o.memory, o.refusals
	}
	return r, err
}

// peer is an owner in a process of its own, as its peer here sees it. It is a Host and a recording Sink for that one
// link.
type peer struct {
	transport.Peer
	t     testing.TB
	cmd   *exec.Cmd
	ended sync.Once
	mu    sync.Mutex // of the pipe
	in    *gob.Decoder
	out   *gob.Encoder
	tr    *Transport
	link  transport.Link
	ups   chan transport.RailInfo
	downs chan *errs.Error
	ends  chan transport.Completion
}

// startOwner starts a process that may be changed before, and a transport here.
func startOwner(t testing.TB, s Settings, theirs ownerSettings, change func(*exec.Cmd)) *peer {
	t.Helper()
	p := &peer{t: t, cmd: exec.Command("/proc/self/exe"), ups: make(chan transport.RailInfo, 8),
		downs: make(chan *errs.Error, 8),
		ends:  make(chan transport.Completion, 1024)}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), ownerEnv+"=1"), os.Stderr
	in, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.in, p.out = gob.NewDecoder(in), gob.NewEncoder(out)
	if change != nil {
		change(p.cmd)
	}
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	p.Peer = p.ask(order{Open: &theirs}).Peer
	tr, err := Factory{}.Open(context.Background(), s, p, p)
	require.NoError(t, err)
	p.tr = tr.(*Transport)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	return p
}

func (p *peer) kill() {
	p.ended.Do(func() { _, _ = p.cmd.Process.Kill(), p.cmd.Wait() })
}

// order asks the owner for something.
func (p *peer) order(todo order) (r report, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err = p.out.Encode(todo); err == nil {
		err = p.in.Decode(&r)
	}
	if err != nil {
		return r, errs.Wrap(errs.PeerUnreachable, "call", err).WithScope(errs.ScopeLink, errs.SideUnknown)
	}
	if r.Code != errs.OK {
		return r, errs.New(r.Code, "call", "%s", r.Text).WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return r, nil
}

func (p *peer) ask(todo order) report {
	p.t.Helper()
	r, err := p.order(todo)
	require.NoError(p.t, err)
	return r
}

func (p *peer) Self() transport.Peer {
	return transport.Peer{Address: "initiator:1", ID: transport.NumberedID(9)}
}

func (p *peer) DescriptorsChanged()                      {}
func (p *peer) Refused(transport.Refusal, string, error) {}
func (p *peer) Log() *slog.Logger                        { return slog.New(slog.DiscardHandler) }
func (p *peer) Addresses() []netip.Addr                  { return nil }
func (p *peer) Call(_ context.Context, _ transport.Peer, message []byte) ([]byte, error) {
	r, err := p.order(order{From: p.Self(), Call: message})
	return r.Answer, err
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
		key, _, err := p.tr.Register(context.Background(), mem.Region{Addr: addressOf(b), Size: testBytes, Fd: -1})
		require.NoError(p.t, err)
		s := &transport.Slice{Op: transport.Op(1 - i), Rail: rail, LocalKey: key, RemoteKey: remote,
			Local: addressOf(b), Length: testBytes}
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
		require.Equal(p.t, from, p.ask(order{}).Bytes)
	}
	return write, read
}

// refusals returns the owner's notes about peers that it refused.
func (p *peer) refusals() string { return p.ask(order{}).Refusals }

func (p *peer) offer(allocated bool, permission mem.Permission) transport.Descriptor {
	return p.ask(order{Offer: testBytes, Allocated: allocated, Permission: permission}).Descriptor
}

func TestBothKindsOfMemoryOfAnotherProcess(t *testing.T) {
	p := startOwner(t, Settings{}, ownerSettings{}, nil)
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
	p := startOwner(t, Settings{}, ownerSettings{}, nil)
	rail, down := p.attach()
	require.Nil(t, down)
	remote, err := p.tr.Import(p.link, p.offer(true, mem.GlobalReadOnly))
	require.NoError(t, err)
	write, read := p.exchange(rail, remote)
	require.Equal(t, errs.PermissionDenied, write.Code)
	require.Nil(t, read)
	from := p.tr.links.Lookup(p.link).find(remote)
	require.NotZero(t, from.base)
	fault := p.tr.copier.Copy(from.base, addressOf(area(t, 8)), 8, 8)
	require.NotNil(t, fault, "the mapping itself can be written")
}

// Memory that the owner lost without unregistering it fails the request; the rail, the link and both processes live on.
func TestLostMemoryFailsItsRequest(t *testing.T) {
	p := startOwner(t, Settings{}, ownerSettings{}, nil)
	rail, down := p.attach()
	require.Nil(t, down)
	good, err := p.tr.Import(p.link, p.offer(false, mem.GlobalReadWrite))
	require.NoError(t, err)
	lost, err := p.tr.Import(p.link, p.offer(false, mem.GlobalReadWrite))
	require.NoError(t, err)
	_, err = p.order(order{Lose: true})
	require.NoError(t, err)
	write, read := p.exchange(rail, lost)
	for _, e := range []*errs.Error{write, read} {
		require.NotNil(t, e)
		require.Equal(t, errs.AddressNotRegistered, e.Code)
		require.Equal(t, errs.SideRemote, e.Side)
		require.Equal(t, errs.ScopeSlice, e.Scope)
	}
	b := area(t, 4096)
	key, _, err := p.tr.Register(context.Background(), mem.Region{Addr: addressOf(b), Size: 4096, Fd: -1})
	require.NoError(t, err)
	s := &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: key, RemoteKey: good, Local: addressOf(b),
		Length: 4096}
	require.True(t, p.tr.Inline([]*transport.Slice{s}), "the rail lives on")
}

// A process that ends is heard of at once, also while nothing is under way.
func TestKilledOwnerIsHeardOf(t *testing.T) {
	p := startOwner(t, Settings{}, ownerSettings{}, nil)
	_, down := p.attach()
	require.Nil(t, down)
	begin := time.Now()
	p.kill()
	cause := next(t, p.downs)
	require.Less(t, time.Since(begin), time.Second)
	require.Equal(t, errs.PeerUnreachable, cause.Code)
	require.Equal(t, errs.SideRemote, cause.Side)
	require.Contains(t, p.tr.Explain(p.link), "process has ended")
}

// A child that this process forks has none of the memory: no slot would speak for it.
func TestForkedChildrenHaveNothing(t *testing.T) {
	p := startOwner(t, Settings{}, ownerSettings{}, nil)
	_, down := p.attach()
	require.Nil(t, down)
	remote, err := p.tr.Import(p.link, p.offer(true, mem.GlobalReadWrite))
	require.NoError(t, err)
	own, err := p.tr.Allocate(testBytes, "cpu:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, p.tr.Free(own)) }()
	for _, addr := range []uintptr{own.Addr, p.tr.links.Lookup(p.link).find(remote).base} {
		require.Contains(t, flagsOf(t, addr), " dc", "MADV_DONTFORK at %#x", addr)
	}
}

func TestYamaIsExplainedAndMappedMemoryWorks(t *testing.T) {
	for scope, says := range map[vm.Scope]string{vm.ScopeRelation: "is 1", vm.ScopeAdmin: "is 2",
		vm.ScopeAbsent: "not dumpable"} {
		p := startOwner(t, Settings{yama: &scope}, ownerSettings{}, nil)
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
	p := startOwner(t, Settings{}, ownerSettings{Trust: TrustNone}, nil)
	_, down := p.attach()
	requireRefused(t, down, oneText)
	require.Contains(t, p.refusals(), "trust is none", "the owner's log")
	_, err := p.tr.Import(p.link, p.offer(true, mem.GlobalReadWrite))
	require.ErrorContains(t, err, oneText)

	mine := startOwner(t, Settings{Trust: TrustNone}, ownerSettings{}, nil)
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
