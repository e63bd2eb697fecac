package plugin

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
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

// closer is a sink that behaves at LinkDown as an engine that closes meanwhile.
type closer struct {
	*watcher
	port  *port
	ended chan error
}

// LinkDown detaches the link once Close waits for the gate, or has it: a call of the port under way may hold it.
func (c *closer) LinkDown(link transport.Link, _ *errs.Error) {
	go func() { c.ended <- c.port.Close(context.Background()) }()
	for gone := false; !gone && c.port.gate.TryRLock(); runtime.Gosched() {
		gone = c.port.gone
		c.port.gate.RUnlock()
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
			_, _, _ = tr.Register(context.Background(), mem.Region{ID: 1, Addr: addressOf(buffer), Size: 64, Fd: -1})
		}
	}()
	select {
	case err := <-sink.ended:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "LinkDown and Close wait for each other", sink.logged())
	}
}
