package engine

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Notices about a link that come before Attach returned are delivered, those that come after Detach are dropped. A port
// keeps nothing of links that have ended.
func TestNoticesOfLinksThatEndedAreDropped(t *testing.T) {
	e := &Engine{}
	e.mu.Lock() // no step runs: the test reads the inbox itself
	p := &port{engine: e, links: map[transport.Link]attachedLink{}}
	for generation := range 1000 {
		link := transport.Link(uint64(generation+1)<<32 | 1)
		rail := transport.Rail{Link: link}
		p.Progress(rail) // before Attach has returned
		require.Nil(t, p.attached(link, 7, nil))
		require.Empty(t, p.early)
		p.Ready(rail)
		p.detached(link)
		p.RailDown(rail, nil)
		p.LinkDown(link, nil)
		require.Empty(t, p.early)
		require.Empty(t, p.links)
	}
	p.Progress(transport.Rail{Link: 2000<<32 | 1}) // of a link that Attach does not return after all
	require.Len(t, p.early, 1)
	require.Nil(t, p.attached(2001<<32|1, 7, nil))
	require.Empty(t, p.early)
	require.Len(t, p.attaches, 1)
	require.Len(t, e.inbox.notices, 2000, "those of links that were attached")
	for _, n := range e.inbox.notices {
		require.EqualValues(t, 7, n.link)
	}
}

// A peer ends, or fences a region, before Attach has returned its link. Both are heard then, as they are later: a task
// with an epoch of before the fence would be refused, and one to a peer that has gone would wait.
func TestNoticesOfBeforeAttachReachThePeer(t *testing.T) {
	e := &Engine{}
	e.mu.Lock() // no step runs
	p := &port{engine: e, links: map[transport.Link]attachedLink{}}
	const link = transport.Link(1<<32 | 1)
	to := newPeer(e, transport.Peer{})
	ends := errs.New(errs.PeerRestarted, "test", "another incarnation answers")
	p.Fenced(link, 1, 5)
	p.LinkDown(link, errs.New(errs.NotImplemented, "test", "it has this transport switched off"))
	require.Nil(t, p.attached(link, 7, to), "the peer has other transports")
	require.EqualValues(t, 5, to.epoch.Load())
	p.Fenced(link, 1, 9)
	require.EqualValues(t, 9, to.epoch.Load())
	p.Fenced(link, 1, 6)
	require.EqualValues(t, 9, to.epoch.Load(), "the newest counts")
	p.LinkDown(link+1<<32, ends)
	require.Equal(t, ends, p.attached(link+1<<32, 8, to))
}

// A call back to a peer goes to the host that the peer's own call came from. The address that it claims may be
// anybody's, and is tried a few times a minute, for all peers together.
func TestCallsBackGoToTheHostThatCalled(t *testing.T) {
	var mu sync.Mutex
	dials := map[string]int{}
	e, err := Open(context.Background(), Options{Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dials[address]++
		return nil, errors.New("no network here")
	}})
	require.NoError(t, err)
	defer func() {
		require.Empty(t, e.Close(patience, true))
		require.NoError(t, e.Forget())
	}()
	p := &port{engine: e, name: "tcp"}
	for i := range uint64(20) {
		for _, claimed := range []string{"192.0.2.1:9", "somebody.example:9", "192.0.2.1:22"} {
			_, err := p.Call(t.Context(), transport.Peer{Address: claimed, Host: "127.0.0.1",
				ID: transport.NumberedID(i)}, nil)
			require.Error(t, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, map[string]int{"127.0.0.1:9": 40, "127.0.0.1:22": 20, "192.0.2.1:9": dials["192.0.2.1:9"],
		"192.0.2.1:22": dials["192.0.2.1:22"]}, dials, "names are never looked up")
	require.LessOrEqual(t, dials["192.0.2.1:9"], 8)
	require.LessOrEqual(t, dials["192.0.2.1:22"], 8)
}
