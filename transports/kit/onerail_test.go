package kit

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// course is a script of a OneRail's life: the answers of its peer, and the events that come of them.
type course struct {
	transport.Sink
	mu     sync.Mutex
	greets []*errs.Error // the answers to greetings, in their order; nil without more
	ticks  []*errs.Error
	events []string
	silent func()        // called when a silence is reported, nil: nothing
	down   func()        // called when the rail goes down, nil: nothing
	ended  chan struct{} // closed when the peer is known to have ended
}

func (c *course) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, fmt.Sprintf(format, args...))
}

func (c *course) next(list *[]*errs.Error) (err *errs.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(*list) > 0 {
		err, *list = (*list)[0], (*list)[1:]
	}
	return err
}

func (c *course) Greet() *errs.Error       { return c.next(&c.greets) }
func (c *course) Tick() *errs.Error        { return c.next(&c.ticks) }
func (c *course) Rail() transport.RailInfo { return transport.RailInfo{} }
func (c *course) Abandon(err *errs.Error)  { c.add("abandon %v %v", err.Code, err.Collateral) }
func (c *course) End()                     { c.add("end") }

func (c *course) RailUp(info transport.RailInfo) { c.add("up %d", info.Rail.Generation) }
func (c *course) RailDown(r transport.Rail, err *errs.Error) {
	c.add("down %d %v", r.Generation, err.Code)
	if c.down != nil {
		c.down()
	}
}
func (c *course) LinkDown(_ transport.Link, err *errs.Error) {
	switch c.add("link down %v", err.Code); {
	case err.EndsPeer():
		close(c.ended)
	case c.silent != nil:
		c.silent()
	}
}

// A peer that is out of reach takes the rail down, and is greeted until it answers; the next generation follows. A
// proof that its process has ended comes later, and is for good.
func TestAPeerOutOfReachIsGreetedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := errs.New(errs.Timeout, "test", "no answer").WithScope(errs.ScopeLink, errs.SideUnknown)
		ended := errs.New(errs.PeerUnreachable, "test", "refused").WithScope(errs.ScopeLink, errs.SideRemote)
		c := &course{greets: []*errs.Error{nil, silent, silent, nil, ended},
			ticks: []*errs.Error{nil, silent, nil, silent}, ended: make(chan struct{})}
		var running sync.WaitGroup
		l := &OneRail{Every: time.Second}
		l.Start("test", c, &running, transport.Peer{}, c)
		<-c.ended
		require.NotNil(t, l.Gone())
		l.Leave()
		running.Wait()
		require.Equal(t, []string{"up 1", "down 1 TIMEOUT", "abandon LOST true", "link down TIMEOUT", "up 2",
			"down 2 TIMEOUT", "abandon LOST true", "abandon PEER_UNREACHABLE false", "link down PEER_UNREACHABLE",
			"abandon LOST false", "end"}, c.events)
	})
}

// The silence of a peer was reported. Its goodbye, or the news that its process has ended, comes by Die and is reported
// as well, once.
func TestTheEndOfASilentPeerIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := errs.New(errs.Timeout, "test", "no answer").WithScope(errs.ScopeLink, errs.SideUnknown)
		ended := errs.New(errs.PeerUnreachable, "test", "goodbye").WithScope(errs.ScopeLink, errs.SideRemote)
		c := &course{greets: []*errs.Error{nil, silent}, ticks: []*errs.Error{silent}, ended: make(chan struct{})}
		var running sync.WaitGroup
		l := &OneRail{Every: time.Second}
		c.silent = func() { l.Die(ended) }
		l.Start("test", c, &running, transport.Peer{}, c)
		select {
		case <-c.ended:
		case <-time.After(10 * greetMax):
			t.Error("the core waits for a peer that has ended")
		}
		l.Kick()
		synctest.Wait()
		l.Leave()
		running.Wait()
		require.Equal(t, []string{"up 1", "down 1 TIMEOUT", "abandon LOST true", "link down TIMEOUT",
			"abandon PEER_UNREACHABLE false", "link down PEER_UNREACHABLE", "abandon PEER_UNREACHABLE false",
			"abandon LOST false", "end"}, c.events)
	})
}

// Pauses grow while a peer is silent. After it has answered they begin anew: the silence of before says nothing about
// the next one.
func TestPausesBeginAnewAfterAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := errs.New(errs.Timeout, "test", "no answer").WithScope(errs.ScopeLink, errs.SideUnknown)
		c := &course{greets: []*errs.Error{silent, silent, silent, silent, nil, silent, nil},
			ticks: []*errs.Error{silent, nil}}
		var running sync.WaitGroup
		l := &OneRail{Every: time.Second}
		begin := time.Now()
		l.Start("test", c, &running, transport.Peer{}, c)
		<-time.After((1 + 2 + 4 + 8) * greetMin)
		synctest.Wait()
		require.EqualValues(t, 1, l.Live.Load(), "%v after the first greeting", time.Since(begin))
		<-time.After(l.Every + greetMin)
		synctest.Wait()
		require.EqualValues(t, 2, l.Live.Load(), "%v after the first greeting", time.Since(begin))
		l.Leave()
		running.Wait()
	})
}

// The peer ends while its rail is renewed: nothing is accepted for it any more.
func TestAPeerThatHasEndedGetsNoNextGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errs.New(errs.DeviceNotFound, "test", "a device is lost").WithScope(errs.ScopeRail, errs.SideLocal)
		ended := errs.New(errs.PeerUnreachable, "test", "goodbye").WithScope(errs.ScopeLink, errs.SideRemote)
		c := &course{ended: make(chan struct{})}
		var running sync.WaitGroup
		l := &OneRail{Every: time.Second}
		c.down = func() { l.Die(ended) }
		l.Start("test", c, &running, transport.Peer{}, c)
		synctest.Wait()
		l.Renew(lost)
		<-c.ended
		require.Zero(t, l.Live.Load())
		l.Leave()
		running.Wait()
		require.NotContains(t, c.events, "up 2")
	})
}
