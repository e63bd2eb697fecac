package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
)

// A transfer with a trace reports its failovers and its end to the peers that it was made with, so that both logs have
// the name. A report is a courtesy: nothing waits for it, nothing repeats it, and one without room is dropped.

const (
	reportsMax   = 256 // that wait to be sent
	reportCall   = 2 * time.Second
	reportEvery  = 10 * time.Millisecond  // between calls: the peer's limit of calls is for others
	reportPause  = 5 * time.Second        // a peer that did not take its reports is left alone for as long
	reportsClose = 200 * time.Millisecond // for reports that still wait when the engine is closed

	heardEvery = 100 // reports of one peer that become events in a second
	heardPeers = 256 // peers with reports in a second
)

// leg is a run of a batch's traced tasks that go to one peer.
type leg struct {
	peer     *peer
	first, n int
}

// addLegs notes the peers of a traced call; its tasks begin at an index. The caller holds e.mu.
func (b *batch) addLegs(c *Call, first int) {
	if c.trace == "" {
		return
	}
	for i := range c.runs {
		if to := c.runs[i].to; to.file == nil && !to.identity.Self {
			b.legs = append(b.legs, leg{to, first + c.runs[i].first, len(c.tasksOf(i))})
		}
	}
}

// onlyPeer returns the one peer of all legs and the number of their tasks, nil if there are several peers.
func (b *batch) onlyPeer() (only *peer, tasks int) {
	only = b.legs[0].peer
	for _, l := range b.legs {
		if l.peer != only {
			return nil, 0
		}
		tasks += l.n
	}
	return only, tasks
}

// reportFailover reports that tasks of a traced batch have changed the transport. The caller holds e.mu.
func (e *Engine) reportFailover(b *batch, sum *dispatch.Summary) {
	b.moves = sum.Failovers
	if sum.Moved == nil {
		return
	}
	r := report{control.Traced{Trace: sum.Trace, Turn: control.TurnFailover, Bytes: sum.Bytes}, nil, sum.Moved}
	if r.peer, _ = b.onlyPeer(); r.peer != nil {
		e.reporter.push(r)
		return
	}
	at := slices.IndexFunc(b.legs, func(l leg) bool { return l.peer.identity.Address == sum.Moved.Peer })
	if at >= 0 {
		r.peer, r.Bytes = b.legs[at].peer, 0 // the bytes of each peer are known at the end
		e.reporter.push(r)
	}
}

// reportEnd reports the end of a traced batch to each of its peers. The caller holds e.mu.
func (e *Engine) reportEnd(b *batch) {
	sum, err := e.core.Summary(b.id)
	if err != nil {
		return
	}
	if to, tasks := b.onlyPeer(); to != nil && tasks == sum.Tasks {
		if b.failure != nil {
			sum.State, sum.Err = endOf(b.failure), b.failure
		}
		e.tell(b, report{control.Traced{Trace: sum.Trace, Turn: turnOf(sum.State), Bytes: sum.Bytes}, to, sum.Err})
		return
	}
	for _, r := range e.endsOf(b) {
		r.Trace = sum.Trace
		e.tell(b, r)
	}
}

// tell sends the report of an end, unless the batch's notification has told it. The caller holds e.mu.
func (e *Engine) tell(b *batch, r report) {
	if n := b.note; r.Turn != control.TurnCompleted || n == nil || n.peer != r.peer || n.trace == "" {
		e.reporter.push(r)
	}
}

// endsOf returns the end of a batch as each of its peers has a part in it. The caller holds e.mu.
func (e *Engine) endsOf(b *batch) (list []report) {
	at := make(map[*peer]int)
	for _, l := range b.legs {
		i, known := at[l.peer]
		if !known {
			i, at[l.peer] = len(list), len(list)
			list = append(list, report{control.Traced{Turn: control.TurnCompleted}, l.peer, nil})
		}
		r := &list[i]
		for task := l.first; task < l.first+l.n; task++ {
			s, err := e.core.Status(b.id, task)
			if err != nil {
				continue
			}
			r.Bytes += s.Bytes
			if s.State != dispatch.Completed && r.Turn == control.TurnCompleted {
				r.Turn, r.cause = turnOf(s.State), s.Err
			}
		}
	}
	return list
}

func turnOf(s dispatch.State) control.Turn {
	switch s {
	case dispatch.Completed:
		return control.TurnCompleted
	case dispatch.Canceled:
		return control.TurnCanceled
	case dispatch.TimedOut:
		return control.TurnTimedOut
	}
	return control.TurnFailed
}

// report is one turn of a traced transfer on its way to a peer.
type report struct {
	control.Traced
	peer  *peer
	cause *errs.Error // nil: none
}

// reporter sends reports, oldest first, by one goroutine that ends when none is left.
type reporter struct {
	send    func(context.Context, *peer, []control.Traced) error
	dropped atomic.Uint64
	heard   reportRates // of peers

	background
	queue []report
	sends bool // the goroutine is there
}

func newReporter(send func(context.Context, *peer, []control.Traced) error) *reporter {
	r := &reporter{send: send}
	r.init()
	return r
}

// push queues a report, in place of the oldest one where there is no room. It may be called with e.mu.
func (r *reporter) push(t report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || t.peer.hearsNothing() {
		r.dropped.Add(1)
		return
	}
	if len(r.queue) >= reportsMax {
		r.queue = slices.Delete(r.queue, 0, 1)
		r.dropped.Add(1)
	}
	r.queue = append(r.queue, t)
	if !r.sends {
		r.sends = true
		r.running.Go(r.run)
	}
}

// hearsNothing reports a peer that has ended, or takes no reports.
func (p *peer) hearsNothing() bool { return p.gone.Load() != nil || p.deaf.Load() > int64(clock.Now()) }

func (r *reporter) run() {
	for to, list := r.next(); to != nil; to, list = r.next() {
		ctx, cancel := context.WithTimeout(r.ctx, reportCall)
		err := r.send(ctx, to, list)
		cancel()
		select {
		case <-r.ctx.Done():
		case <-time.After(reportEvery):
		}
		if err == nil {
			continue
		}
		r.dropped.Add(uint64(len(list)))
		until := clock.Now().Add(reportPause)
		if errs.CodeOf(err) == errs.NotImplemented {
			until = clock.Never
		}
		to.deaf.Store(int64(until))
	}
}

// next takes the reports to the peer of the oldest one, as many as one call carries. Nil ends the goroutine.
func (r *reporter) next() (to *peer, list []control.Traced) {
	r.mu.Lock()
	defer r.mu.Unlock()
	over := r.ctx.Err() != nil
	r.queue = slices.DeleteFunc(r.queue, func(t report) bool {
		if over || t.peer.hearsNothing() {
			r.dropped.Add(1)
			return true
		}
		if to == nil {
			to = t.peer
		}
		if t.peer != to || len(list) >= control.ReportsMax {
			return false
		}
		if t.cause != nil {
			t.Code, t.Cause = t.cause.Code, t.cause.Cause
		}
		list = append(list, t.Traced)
		return true
	})
	r.sends = to != nil
	return to, list
}

// sendReports is the send of the engine's own reporter.
func (e *Engine) sendReports(ctx context.Context, to *peer, list []control.Traced) error {
	return e.client.Report(ctx, to.identity, list)
}

// close drops the reports that cannot be sent in a moment, and returns when the goroutine has ended.
func (r *reporter) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	limit := time.AfterFunc(reportsClose, r.stop)
	r.running.Wait()
	limit.Stop()
	r.stop()
}

// reported turns the reports of a peer into events, as many a second as may not push out all others.
func (e *Engine) reported(from transport.Peer, list []control.Traced) {
	from.Address = e.attributed(from)
	taken := e.reporter.heard.admit(from.ID, len(list), clock.Now())
	for _, t := range list[:taken] {
		ev := event.Event{Kind: event.Traced, Peer: from.Address, Note: t.Turn.String(), Bytes: t.Bytes, Trace: t.Trace}
		if t.Code != 0 {
			ev.Err = errs.New(t.Code, "transfer", "%s", t.Cause).WithScope(errs.ScopeSlice, errs.SideRemote).
				OfPeer(from.Address)
		}
		e.announce(&ev)
	}
	e.reporter.dropped.Add(uint64(len(list) - taken)) // no refusal: honest peers are busy, too
}

// reportRates counts the reports of peers, second by second.
type reportRates struct {
	mu    sync.Mutex
	peers map[transport.ID]*perSecond
}

// perSecond counts within a second.
type perSecond struct {
	begin clock.Time // of the second that n counts
	n     int
}

// take returns how many of n more may happen now, of most in a second.
func (s *perSecond) take(n, most int, now clock.Time) int {
	if now.Sub(s.begin) >= time.Second {
		*s = perSecond{begin: now}
	}
	n = min(n, most-s.n)
	s.n += n
	return n
}

// admit returns how many of n reports may become events now.
func (r *reportRates) admit(from transport.ID, n int, now clock.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	rate := r.peers[from]
	if rate == nil {
		if r.peers == nil {
			r.peers = make(map[transport.ID]*perSecond)
		}
		if len(r.peers) >= heardPeers {
			for id, old := range r.peers {
				if now.Sub(old.begin) >= time.Second {
					delete(r.peers, id)
				}
			}
		}
		if len(r.peers) >= heardPeers {
			return 0
		}
		rate = &perSecond{begin: now}
		r.peers[from] = rate
	}
	return rate.take(n, heardEvery, now)
}
