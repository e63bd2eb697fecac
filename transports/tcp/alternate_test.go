package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// TestAlternatesCarryWhileARailIsDown keeps one of two rails down: the pairs of its ends with the other rail's come
// up, marked as alternates, and carry bytes. They are idle once the rail is back, and go.
func TestAlternatesCarryWhileARailIsDown(t *testing.T) {
	c := newCouple(t, Settings{Addresses: []string{"127.0.0.1", "127.0.0.2"}}, 1<<20)
	tr := c.tr.(*Transport)
	l := tr.links.Lookup(c.link)
	onLink := func(f func(now clock.Time)) {
		done := make(chan struct{})
		require.True(t, l.runOnLink(func(now clock.Time) { f(now); close(done) }))
		<-done
	}
	main := (*l.rails.Load())[0]
	onLink(func(now clock.Time) {
		l.railDown(main, errs.New(errs.Lost, "test", "cut"), now)
		main.due = clock.Never
	})
	c.await(t, "alternates", 5*time.Second, func() bool { return c.rails[2].Alternates && c.rails[3].Alternates })
	for _, i := range []int{2, 3} {
		r := c.rails[uint16(i)]
		require.NotEqual(t, r.Local, r.Remote[:len("127.0.0.1")], "a pair of different ends")
		s := c.slice(transport.Write, i, i<<16, 1<<16)
		require.Equal(t, 1, c.tr.Submit([]*transport.Slice{s}))
		c.awaitEnds(t, 5*time.Second, s)
		require.Nil(t, c.ends[s].Err)
	}
	onLink(func(now clock.Time) { main.redialNow(now) })
	c.await(t, "the rail", 5*time.Second, func() bool { return c.rails[0].Rail.Generation == 2 })
	before := c.downs
	onLink(func(now clock.Time) {
		require.Greater(t, l.retireAlternates(now), now, "they are kept for a while, in case it goes again")
		l.retireAlternates(now.Add(time.Minute))
	})
	c.await(t, "their end", 5*time.Second, func() bool { return c.downs == before+2 })
	require.Nil(t, c.cause, "an orderly end")
}
