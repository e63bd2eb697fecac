package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

// Keys are those of a link: an equal number on another one names another region.
func TestAKeyIsReplacedOnItsLinkAlone(t *testing.T) {
	p := &Plan{Routes: []Route{
		{Hops: []Hop{{Link: 1, LocalKey: 4, RemoteKey: 7}, {Link: 2, LocalKey: 5, RemoteKey: 7}}},
		{Hops: []Hop{{Link: 2, LocalKey: 6, RemoteKey: 8}}}}}
	match := transport.Match{Rails: 3}
	next := p.Rekeyed(2, 7, 9, Matches{5: match})
	require.EqualValues(t, 7, next.Routes[0].Hops[0].RemoteKey)
	require.EqualValues(t, 9, next.Routes[0].Hops[1].RemoteKey)
	require.EqualValues(t, 3, next.Routes[0].Hops[1].Rails)
	require.EqualValues(t, 8, next.Routes[1].Hops[0].RemoteKey)
	require.True(t, next.Reaches(2, 9))
	require.False(t, next.Reaches(2, 7))
	require.True(t, p.Reaches(2, 7), "the plan of before is shared, and stays")
}
