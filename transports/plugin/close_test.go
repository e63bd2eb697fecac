package plugin

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// ends is a sink that keeps the ends of slices.
type ends struct {
	transport.Sink
	list chan transport.Completion
}

func (ends) RailUp(transport.RailInfo) {}

func (e ends) Complete(list []transport.Completion) {
	for _, end := range list {
		e.list <- end
	}
}

// A thread of the plug-in that has not ended may still read the slice and write to its memory, so nothing ends it.
func TestSlicesOfAPlugInThatFailsToCloseStayOut(t *testing.T) {
	f := abusive(t, built(t, asC, "testdata/abuse.c"), "close-fails")
	sink := ends{list: make(chan transport.Completion, 1)}
	submitAndClose(t, f, sink)
	require.Empty(t, sink.list, "the slice has ended while the plug-in has it")
	runtime.GC()
	runtime.GC() // a pin that nobody reaches any more ends the process
	require.NoError(t, f.Check(), "the plug-in reads its slice and the offsets of the pieces, and completes it late")
	require.Empty(t, sink.list)
}

// submitAndClose opens a transport that does not close, and leaves it with a slice.
func submitAndClose(t *testing.T, f Factory, sink transport.Sink) {
	tr, err := f.Open(t.Context(), nil, &watcher{Host: self{}}, sink)
	require.NoError(t, err)
	number, err := tr.Attach(self{}.Self())
	require.NoError(t, err)
	require.Equal(t, 1, tr.Submit([]*transport.Slice{{Rail: transport.Rail{Link: number, Generation: 1}, Length: 64,
		Pieces: &transport.Pieces{LocalAt: []uint64{5}, RemoteAt: []uint64{7}, Bytes: 64}}}))
	require.Equal(t, errs.Timeout, errs.CodeOf(tr.Close(t.Context())))
}

// A revocation waits for every transport that may touch the region, also while one of them closes.
func TestTheExampleRevokesPastATransportThatCloses(t *testing.T) {
	f := abusive(t, built(t, asC, "testdata/abuse.c"), "holds")
	downs := make(chan *errs.Error, 4)
	world := transporttest.NewWorld(t, transporttest.Harness{Patience: 10 * time.Second,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			w := &watcher{Sink: c.Sink, Host: c.Host, downs: downs}
			tr, err := f.Open(t.Context(), nil, w, w)
			require.NoError(t, err)
			return tr
		}})
	owner, far, near := world.Open("owner"), world.Open("far"), world.Open("near") // the last one is looked at first
	owner.Connect(t, near)
	region := owner.Register(t, 64, mem.GlobalReadWrite)
	var running, queued [2]*transport.Slice
	var memory [2]*transporttest.Operand
	var conns [2]*transporttest.Conn
	for i, node := range []*transporttest.Node{far, near} {
		c := node.Connect(t, owner)
		local, remote := node.Register(t, 128, mem.LocalReadWrite), c.Import(t, region)
		running[i] = c.Slice(transport.Write, c.Rail(t), local, 0, remote, 0, 64)
		queued[i] = c.Slice(transport.Write, c.Rail(t), local, 64, remote, 0, 64)
		require.Equal(t, 2, c.Submit(running[i], queued[i]))
		for begun := []byte{0}; begun[0] == 0; runtime.Gosched() {
			local.Load(begun, 0)
		}
		memory[i], conns[i] = local, c
	}
	revoked := make(chan error, 1)
	go func() { revoked <- owner.Transport.Revoke(context.Background(), region.Key, nil, 0) }()
	conns[1].Wait(t, queued[1]) // the revocation has dropped it, and waits for the running ones
	closed := make(chan error, 1)
	go func() { closed <- near.Transport.Close(context.Background()) }()
	<-downs // of the owner: near closes
	memory[1].Store(1, []byte{1})
	require.NoError(t, <-closed)
	early := len(revoked)
	memory[0].Store(1, []byte{1})
	require.Zero(t, early, "a slice to the region ran")
	require.NoError(t, <-revoked)
	conns[0].Wait(t, running[0])
}

// closer is a sink that behaves at LinkDown as an engine that closes meanwhile.
type closer struct {
	*watcher
	port  *port
	ended chan error
}

// LinkDown detaches the link once Close waits for the gate, or has it: a call of the port under way may hold it.
func (c *closer) LinkDown(link transport.Link, _ *errs.Error) {
	go func() { c.ended <- c.port.Close(context.Background()) }()
	for c.port.enter() {
		c.port.leave()
		runtime.Gosched()
	}
	c.port.Detach(link)
}

func (c *closer) RailUp(transport.RailInfo) {}

// The sink calls back into the transport, so a call that finds the third breach must not call it.
func TestTheThirdBreachEndsTheLinksBehindItsCall(t *testing.T) {
	sink := &closer{watcher: &watcher{Host: self{}}, ended: make(chan error, 1)}
	tr, err := abusive(t, built(t, asC, "testdata/abuse.c"), "no-key").Open(t.Context(), nil, sink, sink)
	require.NoError(t, err)
	sink.port = tr.(*port)
	_, err = tr.Attach(self{}.Self())
	require.NoError(t, err)
	buffer := make([]byte, 64)
	go func() {
		for range breachesMax {
			_, _, _ = tr.Register(context.Background(), mem.Region{ID: 1, Addr: mem.AddressOf(buffer), Size: 64,
				Fd: -1})
		}
	}()
	select {
	case err := <-sink.ended:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "LinkDown and Close wait for each other", sink.logged())
	}
}

// A transport has the door of one that has closed. Reports by the name of before find nobody.
func TestANameOfBeforeOpensNoDoor(t *testing.T) {
	f, w := abusive(t, built(t, asC, "testdata/abuse.c"), "old-name"), &watcher{Host: self{}}
	for range 2 {
		tr, err := f.Open(t.Context(), nil, w, w)
		require.NoError(t, err)
		require.NoError(t, tr.Close(t.Context()))
	}
	require.Empty(t, w.logged())
}

// A waiter may come by behind Close: the plug-in's transport is gone, and so is the memory with the ends of slices.
func TestNobodyPollsATransportThatHasClosed(t *testing.T) {
	w := &watcher{Host: self{}}
	tr, err := abusive(t, built(t, asC, "testdata/abuse.c"), "poll-lies").Open(t.Context(), nil, w, w)
	require.NoError(t, err)
	require.NoError(t, tr.Close(t.Context()))
	require.Zero(t, tr.(*port).Poll(1, transport.AllClasses))
	tr.(*port).Arm()
}

// downs is a sink that counts the ends of rails.
type downs struct {
	transport.Sink
	n atomic.Int32
}

func (d *downs) RailDown(rail transport.Rail, cause *errs.Error) {
	d.n.Add(1)
	d.Sink.RailDown(rail, cause)
}

// A report about a generation that is over may come late. It ends nothing.
func TestTheEndOfAnOlderGenerationEndsNoRail(t *testing.T) {
	f, sink := abusive(t, built(t, asC, "testdata/abuse.c"), "old-rails"), &downs{}
	world := transporttest.NewWorld(t, transporttest.Harness{Patience: 10 * time.Second,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			host := c.Sink
			if c.Name == "a" {
				sink.Sink = c.Sink
				host = sink
			}
			tr, err := f.Open(t.Context(), nil, c.Host, host)
			require.NoError(t, err)
			return tr
		}})
	a, b := world.Open("a"), world.Open("b")
	c := a.Connect(t, b)
	local, remote := a.Register(t, 64, mem.LocalReadWrite), c.Import(t, b.Register(t, 64, mem.GlobalReadWrite))
	c.Must(t, c.Slice(transport.Write, c.Rail(t), local, 0, remote, 0, 64)) // its end comes behind the reports
	require.Zero(t, sink.n.Load())
}

// A call that does not return keeps Close from its end. It keeps no caller waiting, and so none that must not block.
func TestACallThatHangsHoldsUpCloseAlone(t *testing.T) {
	w := &watcher{Host: self{}}
	tr, err := abusive(t, built(t, asC, "testdata/abuse.c"), "hangs").Open(t.Context(), nil, w, w)
	require.NoError(t, err)
	words, registered := make([]uint32, 16), make(chan error, 1)
	go func() {
		_, _, err := tr.Register(context.Background(), mem.Region{ID: 1, Addr: mem.AddressOf(words), Size: 64, Fd: -1})
		registered <- err
	}()
	for atomic.LoadUint32(&words[0]) == 0 {
		runtime.Gosched()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, tr.Close(ended), context.Canceled)
	for range 100 { // before Close has come to the gate, and behind that
		tr.Withdraw([]*transport.Slice{{}})
		require.Zero(t, tr.(transport.EpochReader).Epoch(0))
		require.NotEqual(t, errs.OK, errs.CodeOf(tr.Deregister(t.Context(), 1)))
		runtime.Gosched()
	}
	require.Empty(t, registered)
	atomic.StoreUint32(&words[0], 0x101)
	require.NoError(t, <-registered)
	require.NoError(t, tr.Close(t.Context()))
}
