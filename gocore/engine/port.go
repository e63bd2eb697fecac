package engine

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// port connects one transport to the engine: its Sink and its Host. Every report of the transport goes into the inbox.
type port struct {
	engine      *Engine
	index       uint8
	name        string
	number      uint8                 // of TransportType, see config.NumberOf
	transport   transport.Transport   // nil: not open, reason says why
	info        transport.Info        // of the transport; the name alone where it is not open
	inliner     transport.Inliner     // nil if it copies nothing on the caller's thread
	notifier    transport.Notifier    // nil if it carries none
	filer       transport.Filer       // nil if it moves no bytes of files
	matcher     transport.Matcher     // nil: every pair of keys works on every rail
	prober      transport.Prober      // nil if it has no probes
	witness     transport.Witness     // nil if it knows no more than its completions
	epochs      transport.EpochReader // nil if it announces epochs
	reason      string
	required    bool          // transports/<name>/required
	saidNotHere atomic.Bool   // the first region that it could not use was logged
	readies     atomic.Uint32 // Ready calls so far; see outbox.carryOut

	mu       sync.Mutex
	links    map[transport.Link]attachedLink
	attaches []uint32 // by index of a link: the newest generation that Attach has returned
	early    []notice // about links that Attach has not returned yet

	keys *ownKeys // nil: it names no regions by their keys
}

// attachedLink is the engine's view of a transport's link.
type attachedLink struct {
	id   plan.LinkID
	peer *peer
}

var (
	_ transport.Sink = (*port)(nil)
	_ transport.Host = (*port)(nil)
)

// Complete implements transport.Sink: the goroutine that found the completions runs the step itself.
func (p *port) Complete(list []transport.Completion) {
	p.engine.inbox.complete(p.index, list)
	p.engine.runSteps()
}

// Ready implements transport.Sink.
func (p *port) Ready(rail transport.Rail) {
	p.readies.Add(1)
	p.notice(notice{kind: noticeReady, rail: rail})
}

// Progress implements transport.Sink.
func (p *port) Progress(rail transport.Rail) { p.notice(notice{kind: noticeProgress, rail: rail}) }

// RailUp implements transport.Sink.
func (p *port) RailUp(info transport.RailInfo) {
	p.notice(notice{kind: noticeRailUp, rail: info.Rail, info: info})
}

// RailDown implements transport.Sink.
func (p *port) RailDown(rail transport.Rail, cause *errs.Error) {
	p.notice(notice{kind: noticeRailDown, rail: rail, cause: cause})
}

// LinkDown implements transport.Sink. The end of a peer's process or incarnation ends it on every transport. Any other
// refusal of the peer is about this one alone: it may have the transport switched off.
func (p *port) LinkDown(link transport.Link, cause *errs.Error) {
	p.notice(notice{kind: noticeLinkDown, rail: transport.Rail{Link: link}, cause: cause})
	if cause == nil || !cause.EndsPeer() {
		return
	}
	if gone := p.peerOf(link); gone != nil {
		p.engine.peerGone(gone, cause)
	}
}

// Fenced implements transport.Sink. Tasks that begin from now on carry the epoch; those of before end by the core.
func (p *port) Fenced(link transport.Link, key transport.RemoteKey, epoch transport.Epoch) {
	if to := p.peerOf(link); to != nil {
		to.hear(epoch)
	}
	p.notice(notice{kind: noticeFenced, rail: transport.Rail{Link: link}, key: key, epoch: epoch})
}

// Notified implements transport.Sink.
func (p *port) Notified(from transport.Peer, message []byte) bool {
	return p.engine.takeNotes(p.name, from, message) == nil
}

// notice translates the transport's link into the core's, queues the notice and runs a step. A notice about a link that
// was detached already is dropped.
func (p *port) notice(n notice) {
	p.mu.Lock()
	attached, known := p.links[n.rail.Link]
	if !known {
		if !p.wasAttached(n.rail.Link) {
			p.early = append(p.early, n)
		}
		p.mu.Unlock()
		return
	}
	n.link = attached.id
	p.engine.inbox.notice(n) // under p.mu, so that notices of a link stay in order
	p.mu.Unlock()
	p.engine.runSteps()
}

// attached makes a link known and delivers its early notices. It returns the cause if one of them says that the peer is
// gone.
func (p *port) attached(link transport.Link, id plan.LinkID, to *peer) (gone *errs.Error) {
	p.mu.Lock()
	p.links[link] = attachedLink{id, to}
	for int(link.Index()) >= len(p.attaches) {
		p.attaches = append(p.attaches, 0)
	}
	p.attaches[link.Index()] = link.Generation()
	rest := p.early[:0]
	for _, n := range p.early {
		if n.rail.Link != link {
			if !p.wasAttached(n.rail.Link) { // else its Attach has failed
				rest = append(rest, n)
			}
			continue
		}
		n.link = id
		p.engine.inbox.notice(n)
		if n.kind == noticeFenced {
			to.hear(n.epoch)
		}
		if n.kind == noticeLinkDown && n.cause != nil && n.cause.EndsPeer() {
			gone = n.cause
		}
	}
	clear(p.early[len(rest):])
	p.early = rest
	p.mu.Unlock()
	return gone
}

// peerOf returns the peer of a link that is attached, or nil.
func (p *port) peerOf(link transport.Link) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.links[link].peer
}

// wasAttached reports whether Attach has returned the link or a newer one of its index. The caller holds mu.
func (p *port) wasAttached(link transport.Link) bool {
	i := int(link.Index())
	return i < len(p.attaches) && link.Generation() <= p.attaches[i]
}

func (p *port) detached(link transport.Link) {
	p.mu.Lock()
	delete(p.links, link)
	p.mu.Unlock()
}

// Call implements transport.Host.
func (p *port) Call(ctx context.Context, to transport.Peer, message []byte) ([]byte, error) {
	if to.Self { // no need to leave the process; only a call that never left it is our own
		self := p.engine.Self()
		self.Self = true
		return p.transport.Serve(ctx, self, message)
	}
	to, err := p.engine.reachable(to)
	if err != nil {
		return nil, err
	}
	return p.engine.client.Call(ctx, to, p.name, message)
}

// Self implements transport.Host.
func (p *port) Self() transport.Peer { return p.engine.Self() }

// Refused implements transport.Host.
func (p *port) Refused(reason transport.Refusal, from string, cause error) {
	p.engine.refusals.count(p.name, reason, from, cause)
}

// Addresses implements transport.Host.
func (p *port) Addresses() []netip.Addr { return []netip.Addr{p.engine.host.Data} }

// Log implements transport.Host.
func (p *port) Log() *slog.Logger { return p.engine.log.With("transport", p.name) }
