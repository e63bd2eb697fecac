package kit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

func TestStaleLinksAreRefusedAndCounted(t *testing.T) {
	type state struct{ link transport.Link }
	var links Links[state]
	attach := func() *state {
		s := &state{}
		link, err := links.Attach("test.attach", func(l transport.Link) *state { s.link = l; return s })
		require.NoError(t, err)
		require.Equal(t, link, s.link)
		return s
	}
	old := attach()
	require.Same(t, old, links.Lookup(old.link))
	require.Same(t, old, links.Detach(old.link))
	require.Zero(t, links.Stale())
	young := attach()
	require.Equal(t, old.link.Index(), young.link.Index())
	require.Nil(t, links.Lookup(old.link))
	require.Nil(t, links.Detach(old.link))
	require.Nil(t, links.Lookup(0))
	require.Equal(t, uint64(3), links.Stale())
	require.Equal(t, 1, links.Len())
	for link, s := range links.All() {
		require.Equal(t, young.link, link)
		require.Same(t, young, s)
	}
}
