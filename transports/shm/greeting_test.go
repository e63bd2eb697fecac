package shm

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/transports/host/access"
)

// twice is an engine from which each greeting comes twice. So it does where a connection breaks in the midst of a call,
// or two addresses of a peer are tried.
type twice struct{ alone }

func (d *twice) Call(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
	if message[1] == access.CallHello {
		_, _ = d.alone.Call(ctx, to, message) // its answer is lost
	}
	return d.alone.Call(ctx, to, message)
}

func TestGreetingsThatComeTwiceHaveOneGrant(t *testing.T) {
	for _, reach := range []reach{reachAll, reachForeign} {
		d := &twice{alone{up: make(chan transport.RailInfo, 8)}}
		tr, err := Factory{}.Open(context.Background(), Settings{reach: reach}, d, d)
		require.NoError(t, err)
		d.tr = tr.(*Transport)
		t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
		for range 2 * access.GrantsPerPeer {
			number, err := tr.Attach(d.Self())
			require.NoError(t, err)
			next(t, d.up)
			require.Equal(t, 1, d.tr.Grants())
			l := d.tr.links.Lookup(number)
			tr.Detach(number)
			<-l.Done()
			require.Zero(t, d.tr.Grants())
		}
	}
}

// Greetings that were given up leave grants that their peer knows nothing of. They make room for it after a while, and
// the page of a link that is up stays.
func TestGrantsThatNobodyTookMakeRoom(t *testing.T) {
	p := startOwner(t, Settings{}, Opening{})
	rail, down := p.attach()
	require.Nil(t, down)
	remote, err := p.tr.Import(p.link, p.offer(true, mem.GlobalReadWrite))
	require.NoError(t, err)
	greet := func() error {
		_, err := p.Call(context.Background(), p.Peer,
			access.Hello(version, access.NewToken(), p.tr.Manifest.Claims(p.tr.Me)))
		return err
	}
	p.ask("Spare", time.Hour, new(forked.Nothing))
	for range access.GrantsPerPeer - 1 {
		require.NoError(t, greet())
	}
	require.ErrorContains(t, greet(), "has 64 links to us already")
	p.ask("Spare", time.Duration(0), new(forked.Nothing))
	require.NoError(t, greet())
	write, read := p.exchange(rail, remote)
	require.Nil(t, write)
	require.Nil(t, read)
}

// late is an engine that comes to the page of its first grant after that was taken back.
type late struct {
	alone
	calls int
}

func (l *late) Call(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
	answer, err := l.alone.Call(ctx, to, message)
	if l.calls++; l.calls == 1 && err == nil {
		_, err = l.alone.Call(ctx, to, access.Call(version, access.CallLeave, access.Token(answer[1:17])))
	}
	return answer, err
}

func TestAPeerThatComesLateGreetsAgain(t *testing.T) {
	d := &late{alone: alone{up: make(chan transport.RailInfo, 8)}}
	tr, err := Factory{}.Open(context.Background(), Settings{}, d, d)
	require.NoError(t, err)
	d.tr = tr.(*Transport)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	number, err := tr.Attach(d.Self())
	require.NoError(t, err)
	next(t, d.up)
	require.Nil(t, d.tr.links.Lookup(number).Gone())
}
