package access

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// Limits.
const (
	GreetLimit  = 500 * time.Millisecond // of one greeting
	CallLimit   = 200 * time.Millisecond // of a message that nobody depends on
	RevokeLimit = 5 * time.Second        // of a wait for copiers where the caller gave no limit
)

// Goodbyes of an engine that closes: how many are on their way at once, and how long all of them may take.
const (
	goodbyesMax  = 64
	goodbyeLimit = 500 * time.Millisecond
)

// Config is the transport's part of a Point. Functions that are nil are not called.
type Config struct {
	Name    string // of the transport
	Version byte   // of its calls
	Regions uint32 // how many it has at most
	Host    transport.Host
	Sink    transport.Sink
	Life    *kit.Lifecycle // of the transport
	Trust   error          // why nobody is let in; nil: processes of the same user are

	// Own reports whether a peer is our own engine, for which no process is looked at.
	Own func(transport.Peer) bool
	// Links are those that are attached.
	Links func() iter.Seq[*Link]
	// Shut lists the regions that were shut for a peer alone.
	Shut func(transport.ID) iter.Seq2[hazard.Region, transport.Epoch]
	// Welcome adds a word to the answer to a peer that was let in, Ended hears of the end of its grant.
	Welcome func(*Grant) int32
	Ended   func(*Grant)
	// Serve answers a call of CallOwn or above, of a peer with a grant.
	Serve func(ctx context.Context, g *Grant, kind byte, r *kit.Reader) ([]byte, error)
}

// Point is an engine's end: the peers that it has let in, and the links by which it gets in elsewhere. Any goroutine
// may call it.
type Point struct {
	Config
	Me       vm.Identity
	Table    *hazard.Table
	Manifest *manifest.Manifest

	self    transport.Peer
	grants  grants
	watcher watcher
	running sync.WaitGroup // goroutines of links; they begin under Life
	serving sync.WaitGroup // calls of Answer, as well
}

// Open makes a Point. The error says why this machine cannot have one.
func Open(c Config) (*Point, error) {
	p := &Point{Config: c, self: c.Host.Self(), Table: hazard.NewTable(c.Regions)}
	var err error
	if p.Me, err = vm.Self(); err == nil {
		p.Manifest, err = manifest.New(p.self.ID, c.Regions)
	}
	if err != nil {
		return nil, errs.Wrap(errs.DeviceNotFound, c.Name+".open", err).
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	p.grants.init(p)
	return p, nil
}

// op names an operation of the transport in errors.
func (p *Point) op(what string) string { return p.Name + "." + what }

// Revoke is the owner's fence of a region, as Transport.Revoke says it. From its start nothing new begins there, and it
// returns when no copier of the peers (or the one) is inside any more: it needs nobody to answer.
func (p *Point) Revoke(ctx context.Context, door *kit.Door, name hazard.Region, peer *transport.Peer,
	epoch transport.Epoch) error {
	ctx, cancel := Bounded(ctx)
	defer cancel()
	if peer == nil {
		door.Shut(nil, epoch) // forgets peers that were fenced alone before
		// again: waits again for copiers, and opens nothing
		return p.Table.Revoke(ctx, name, nil, hazard.Epoch(epoch))
	}
	var first error
	for _, g := range p.grants.of(peer, door, epoch) {
		if err := p.Table.Revoke(ctx, name, g.page, hazard.Epoch(epoch)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Wait returns when the links' goroutines have ended. All links are detached.
func (p *Point) Wait() { p.running.Wait() }

// Close says to all peers with a grant that we close, and takes our memory back from them. Life is closed. The error
// names those that cannot be waited for.
func (p *Point) Close(ctx context.Context) error {
	list := p.grants.close()
	p.sayGoodbye(list)
	err := p.Table.Close(ctx)
	p.serving.Wait() // each call is bounded
	for _, g := range list {
		if g.process != nil {
			p.watcher.remove(g.process.Fd())
		}
		p.release(g)
	}
	p.watcher.close()
	p.Manifest.Close()
	if err != nil {
		return errs.Wrap(errs.Timeout, p.op("close"), err).WithScope(errs.ScopeTransport, errs.SideRemote)
	}
	return nil
}

// sayGoodbye lets peers know that their links have ended. It is a courtesy: they are refused from now on anyhow.
func (p *Point) sayGoodbye(list []*Grant) {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeLimit)
	defer cancel()
	room := make(chan struct{}, goodbyesMax)
	var calls sync.WaitGroup
	for _, g := range list {
		room <- struct{}{}
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, CallLimit)
			defer cancel()
			_, _ = p.Host.Call(ctx, g.Peer, Call(p.Version, CallGoodbye, g.link))
			<-room
		})
	}
	calls.Wait()
}

// Bounded ends a context without a deadline after RevokeLimit.
func Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, RevokeLimit)
}
