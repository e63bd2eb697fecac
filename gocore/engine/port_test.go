package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

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
	require.Len(t, p.attaches, 1)
	require.Len(t, e.inbox.notices, 2000, "those of links that were attached")
	for _, n := range e.inbox.notices {
		require.EqualValues(t, 7, n.link)
	}
}
