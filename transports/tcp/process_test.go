package tcp

import (
	"context"
	"encoding/gob"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
)

// Tests across processes run the test binary itself as a peer with a region. It answers control calls over a socket, so
// that it can be stopped and killed like a real peer.

func TestMain(m *testing.M) {
	if forked.RunChild(new(Remote)) {
		return
	}
	os.Exit(m.Run())
}

// endpoint is a Host and a recording Sink with a control plane of its own.
type endpoint struct {
	self     transport.Peer
	listener net.Listener
	tr       transport.Transport
	calls    sync.WaitGroup
	errors   errorLog
	refusals [transport.RefusalCount]atomic.Int64

	onRefusal func(transport.Refusal) // nil: nothing; set before the first one

	mu    sync.Mutex
	cond  *sync.Cond
	ends  map[*transport.Slice]transport.Completion
	rails map[uint16]transport.RailInfo
	downs int
	cause *errs.Error // of the last rail that went down
	dead  *errs.Error
}

type controlCall struct {
	From    transport.Peer
	Message []byte
}

type controlAnswer struct {
	Message []byte
	Code    errs.Code
	Side    errs.Side
	Text    string
}

func newEndpoint(s Settings) (*endpoint, error) { return newEndpointOf(Factory{}, s) }

func newEndpointOf(f Factory, s Settings) (*endpoint, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &endpoint{listener: l, ends: map[*transport.Slice]transport.Completion{},
		rails: map[uint16]transport.RailInfo{}}
	e.cond = sync.NewCond(&e.mu)
	e.self = transport.Peer{Address: l.Addr().String(), Name: "test", MachineID: "here", ID: transport.NewID()}
	e.tr, err = f.Open(context.Background(), s, e, e)
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	e.calls.Add(1)
	go e.answer()
	return e, nil
}

func (e *endpoint) answer() {
	defer e.calls.Done()
	for {
		c, err := e.listener.Accept()
		if err != nil {
			return
		}
		e.calls.Add(1)
		go func() {
			defer e.calls.Done()
			defer func() { _ = c.Close() }()
			var call controlCall
			if gob.NewDecoder(c).Decode(&call) != nil {
				return
			}
			var a controlAnswer
			answer, err := e.tr.Serve(context.Background(), call.From, call.Message)
			if a.Message = answer; err != nil {
				a.Code, a.Text = errs.CodeOf(err), err.Error()
				if errs.From("serve", err).Side == errs.SideLocal { // as the control plane turns it
					a.Side = errs.SideRemote
				}
			}
			_ = gob.NewEncoder(c).Encode(a)
		}()
	}
}

func (e *endpoint) Call(ctx context.Context, peer transport.Peer, message []byte) ([]byte, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", peer.Address)
	if err != nil {
		return nil, errs.Wrap(errs.PeerUnreachable, "call", err)
	}
	defer func() { _ = c.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	var a controlAnswer
	err = errors.Join(gob.NewEncoder(c).Encode(controlCall{e.self, message}), gob.NewDecoder(c).Decode(&a))
	if err != nil {
		return nil, errs.Wrap(errs.PeerUnreachable, "call", err)
	}
	if a.Code != errs.OK {
		return nil, errs.New(a.Code, "call", "%s", a.Text).WithScope(errs.ScopeLink, a.Side)
	}
	return a.Message, nil
}

func (e *endpoint) Self() transport.Peer                              { return e.self }
func (e *endpoint) Describe(transport.LocalKey, transport.Descriptor) {}
func (e *endpoint) Refused(reason transport.Refusal, _ string, _ error) {
	e.refusals[reason].Add(1)
	if e.onRefusal != nil {
		e.onRefusal(reason)
	}
}

// refused returns how often something was refused for a reason.
func (e *endpoint) refused(reason transport.Refusal) int64 { return e.refusals[reason].Load() }

func (e *endpoint) Log() *slog.Logger       { return slog.New(slog.NewTextHandler(&e.errors, nil)) }
func (e *endpoint) Addresses() []netip.Addr { return nil }

// errorLog keeps the log of the transport, which logs nothing but errors of its own.
type errorLog struct {
	mu   sync.Mutex
	text []byte
}

func (l *errorLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	return len(b), nil
}

func (e *endpoint) change(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	e.cond.Broadcast()
}

func (e *endpoint) Complete(list []transport.Completion) {
	e.change(func() {
		for _, c := range list {
			e.ends[c.Slice] = c
		}
	})
}
func (e *endpoint) Ready(transport.Rail)    { e.change(func() {}) }
func (e *endpoint) Progress(transport.Rail) {}
func (e *endpoint) RailUp(i transport.RailInfo) {
	e.change(func() { e.rails[i.Rail.Index] = i })
}
func (e *endpoint) RailDown(r transport.Rail, cause *errs.Error) {
	e.change(func() { delete(e.rails, r.Index); e.downs++; e.cause = cause })
}
func (e *endpoint) LinkDown(_ transport.Link, cause *errs.Error)                { e.change(func() { e.dead = cause }) }
func (e *endpoint) Fenced(transport.Link, transport.RemoteKey, transport.Epoch) {}
func (e *endpoint) Notified(transport.Peer, []byte) bool                        { return true }

// await waits until cond, called locked, holds.
func (e *endpoint) await(t testing.TB, what string, within time.Duration, cond func() bool) {
	t.Helper()
	expired := false
	timer := time.AfterFunc(within, func() { e.change(func() { expired = true }) })
	defer timer.Stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	for !cond() {
		require.False(t, expired, "waited in vain for %s", what)
		e.cond.Wait()
	}
}

func (e *endpoint) close(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, e.tr.Close(ctx))
	require.NoError(t, e.listener.Close())
	e.calls.Wait()
	require.Empty(t, string(e.errors.text))
}

// mapping is memory outside Go's heap that ends with the test.
func mapping(t testing.TB, size int) []byte {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	for i := range b {
		b[i] = byte(i*31 + i>>12)
	}
	return b
}

func regionOf(b []byte) mem.Region {
	return mem.Region{Addr: mem.AddressOf(b), Size: uint64(len(b)), Permission: mem.GlobalReadWrite, Fd: -1}
}

// Offer is the answer of a peer that is ready.
type Offer struct {
	Peer       transport.Peer
	Descriptor transport.Descriptor
}

const childBytes = 64 << 20

// Remote is a peer in a process of its own, with one region. Its exported methods are called by the parent.
type Remote struct {
	endpoint *endpoint
	memory   []byte
	files    []*os.File
}

// Open opens a transport and registers the region.
func (r *Remote) Open(s Settings, offer *Offer) (err error) {
	if r.endpoint, err = newEndpoint(s); err != nil {
		return err
	}
	r.memory, err = unix.Mmap(-1, 0, childBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	offer.Peer = r.endpoint.self
	_, offer.Descriptor, err = r.endpoint.tr.Register(context.Background(), regionOf(r.memory))
	return err
}

// Limit sets the number of descriptors that the process may have open. It is called before Open.
func (r *Remote) Limit(descriptors uint64, _ *int) error {
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: descriptors, Max: descriptors})
}

// OpenFiles opens a number of files and closes them, as the program around the engine does.
func (r *Remote) OpenFiles(n int, _ *int) (err error) {
	var files []*os.File
	for range n {
		f, failed := os.Open(os.DevNull)
		if failed != nil {
			err = failed
			break
		}
		files = append(files, f)
	}
	for _, f := range files {
		_ = f.Close()
	}
	return err
}

// Exhaust opens files until the process may have no more, and keeps them.
func (r *Remote) Exhaust(_ int, files *int) error {
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			*files = len(r.files)
			return nil
		}
		r.files = append(r.files, f)
	}
}

// Sum returns a checksum of the region's bytes from span[0] on, span[1] of them.
func (r *Remote) Sum(span [2]int, result *uint64) error {
	*result = sum(r.memory[span[0] : span[0]+span[1]])
	return nil
}

// ProcessorTime returns the time that the process has used.
func (r *Remote) ProcessorTime(_ int, result *time.Duration) error {
	var u unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &u)
	*result = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return err
}

func sum(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// child is a Remote, driven from here.
type child struct {
	*forked.Child
	Offer
}

func startChild(t testing.TB, s Settings) *child {
	c := spawnChild(t)
	require.NoError(t, c.Call("Remote.Open", s, &c.Offer))
	return c
}

// spawnChild starts a process that has not opened its transport yet.
func spawnChild(t testing.TB) *child {
	process, err := forked.Start()
	require.NoError(t, err)
	t.Cleanup(process.Kill)
	return &child{Child: process}
}

func (c *child) sum(t testing.TB, from, n int) (result uint64) {
	require.NoError(t, c.Call("Remote.Sum", [2]int{from, n}, &result))
	return result
}

func (c *child) processorSeconds(t testing.TB) float64 {
	var used time.Duration
	require.NoError(t, c.Call("Remote.ProcessorTime", 0, &used))
	return used.Seconds()
}

// couple is an endpoint here, attached to a peer process.
type couple struct {
	*endpoint
	child  *child
	memory []byte
	key    transport.LocalKey
	link   transport.Link
	remote transport.RemoteKey
}

func newCouple(t testing.TB, s Settings, size int) *couple { return newCoupleOf(t, Factory{}, s, size) }

func newCoupleOf(t testing.TB, f Factory, s Settings, size int) *couple {
	c := &couple{child: startChild(t, s)}
	var err error
	c.endpoint, err = newEndpointOf(f, s)
	require.NoError(t, err)
	t.Cleanup(func() { c.close(t) })
	c.memory = mapping(t, size)
	c.key, _, err = c.tr.Register(context.Background(), regionOf(c.memory))
	require.NoError(t, err)
	c.link, err = c.tr.Attach(c.child.Peer)
	require.NoError(t, err)
	c.remote, err = c.tr.Import(c.link, c.child.Descriptor)
	require.NoError(t, err)
	c.await(t, "rails", 5*time.Second, func() bool {
		n := 0
		for _, r := range c.rails {
			if !r.Alternates {
				n++
			}
		}
		return n == max(1, len(s.Addresses))
	})
	return c
}

func (c *couple) slice(op transport.Op, rail, at, n int) *transport.Slice {
	return &transport.Slice{Op: op, Rail: c.rails[uint16(rail)].Rail, LocalKey: c.key, RemoteKey: c.remote,
		Local: mem.AddressOf(c.memory) + uintptr(at), Remote: uint64(at), Length: uint64(n)}
}

// carry submits slices and polls until all are accepted, as a waiter does, and awaits their ends.
func (c *couple) carry(t testing.TB, list []*transport.Slice) {
	t.Helper()
	for rest := list; len(rest) > 0; {
		rest = rest[c.tr.Submit(rest):]
		c.tr.(*Transport).Poll(64, transport.AllClasses)
	}
	c.tr.(*Transport).Arm()
	c.awaitEnds(t, 10*time.Second, list...)
}

func (c *couple) awaitEnds(t testing.TB, within time.Duration, list ...*transport.Slice) {
	t.Helper()
	c.await(t, "completions", within, func() bool {
		for _, s := range list {
			if _, ok := c.ends[s]; !ok {
				return false
			}
		}
		return true
	})
}
