package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// In mode mtls the files change while the engine runs: certificates are short-lived, and authorities are replaced.
// Transfers do not notice: lanes prove a secret of their own, and the engine's key stays (security, mtls.go).

const (
	expiryLook  = time.Second     // behind the end of a certificate, and between looks at ends at least
	renewalAsk  = 3 * time.Second // for the answers of peers with old certificates, all together
	unlistedAsk = time.Second     // for those of peers that security/allow does not list
	renewalAsks = 64              // at once; each has three quarters of the limit for all
)

// ReloadSecurity reads the files of mode mtls again where one was replaced, and reports whether it changed anything. A
// list that is not nil takes the place of security/allow. Peers that are not admitted any more lose their access, see
// recheck. Running transfers of all others go on. After an error everything is as before. In other modes there are no
// files, and a list is InvalidArgument. Where ctx ends first, the change holds, peers have no more time to answer, and
// nobody waits for the last of their bytes.
func (e *Engine) ReloadSecurity(ctx context.Context, allow []string) (changed bool, err error) {
	if err := e.usable(); err != nil {
		return false, err
	}
	changed, err = e.credentials.Reload(allow)
	if changed || err != nil {
		e.announceReload(err)
	}
	if !changed {
		return false, err
	}
	checked := make(chan struct{})
	started := e.routines.start(func() {
		defer close(checked)
		ctx, end := context.WithCancel(ctx)
		defer end()
		defer context.AfterFunc(e.routines.ctx, end)()
		e.recheck(ctx, time.Now())
	})
	if !started {
		return true, err // the engine has closed, and no peer has any access
	}
	select {
	case <-checked:
	case <-ctx.Done():
	}
	return true, err
}

// keepCredentials looks at the files and at the ends of peers' certificates, until the engine closes.
func (e *Engine) keepCredentials(ctx context.Context) {
	interval := e.config.Engine.Reload
	failed := "" // by the last look
	look := time.NewTicker(expiryLook)
	defer look.Stop()
	for next := time.Now().Add(interval); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			e.recheck(ctx, now)
			if interval <= 0 || now.Before(next) {
				continue
			}
			next = now.Add(interval)
		}
		failed = e.lookAtFiles(ctx, failed)
	}
}

// announceReload says that files were read again, or why not. The note is the end of our certificate, if it has one.
func (e *Engine) announceReload(failure error) {
	ev := event.Event{Kind: event.SecurityReloaded, Err: errs.From("reload", failure)}
	if until := e.credentials.Until(); !until.IsZero() {
		ev.Note = "until " + until.UTC().Format(time.RFC3339)
	}
	e.announce(&ev)
}

// lookAtFiles reads the files that were replaced. It returns the failure, "" for none; the one of the last look is not
// announced again.
func (e *Engine) lookAtFiles(ctx context.Context, failed string) string {
	changed, err := e.credentials.Reload(nil)
	if changed || err != nil && err.Error() != failed {
		e.announceReload(err)
	}
	if changed {
		e.recheck(ctx, time.Now())
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// suspect is a visitor that is not admitted by its latest proof.
type suspect struct {
	visitor
	reason  error
	patient bool // it has more time to show a newer one
	kept    bool // it is kept out: it had its time
}

// recheck ends the access of peers that are not admitted any more. Those that have something open are asked first: they
// may have another certificate by now. A peer that is not listed loses its access within unlistedAsk, however many
// others are asked and say nothing. Peers of old certificates do when they have shown nothing better within
// security/renewal_grace: they look at their files from time to time, as this engine does. Several calls may run side
// by side, so that an unlisted peer waits for no question to others.
func (e *Engine) recheck(ctx context.Context, at time.Time) {
	var list, unlisted, old []suspect
	for _, v := range e.visitors.list() {
		if reason := e.credentials.Still(v.proof, at); reason != nil {
			list = append(list, suspect{visitor: v, reason: reason})
			e.server.Expel(v.peer.ID) // it comes again by a handshake, and hears no answer that opens anything
		}
	}
	if len(list) == 0 {
		return
	}
	open := e.openVisitors()
	for _, s := range list {
		switch id := s.peer.ID; {
		case !open[id]:
			if e.visitors.dropAsSeen(s.visitor) {
				e.endLanes(id) // of a call under way
			}
		case security.Unlisted(s.reason):
			unlisted = append(unlisted, s)
		default:
			s.patient = at.Sub(e.visitors.doubt(id, at)) < e.config.Engine.RenewalGrace
			old = append(old, s)
		}
	}
	e.renewOrDismiss(ctx, unlisted, unlistedAsk)
	e.renewOrDismiss(ctx, old, renewalAsk)
}

// renewOrDismiss asks peers for newer proofs, side by side and within a limit for all together. Then it ends the access
// of those that have shown none, but for the patient ones. Of too many, the ones that were asked longest ago come
// first. A peer that had no time to answer is not kept out. The end of older identities waits for bytes under way, and
// holds up that of no access.
func (e *Engine) renewOrDismiss(ctx context.Context, list []suspect, limit time.Duration) {
	slices.SortStableFunc(list, func(a, b suspect) int { return a.asked.Compare(b.asked) })
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var mu sync.Mutex
	var renaming sync.WaitGroup
	defer renaming.Wait()
	lost := make([]suspect, 0, len(list))
	sideBySide(list, renewalAsks, func(s suspect) {
		err := overdue(asking)
		if err == nil {
			e.visitors.ask(s.peer.ID, time.Now())
			var now visitor
			now, err = e.askAgain(asking, s.visitor, limit/4*3)
			if err == nil {
				renaming.Go(func() { e.shown(now.peer, now.proof) })
			}
			s.kept = err != nil && overdue(asking) == nil && errs.CodeOf(err) != errs.Internal
		}
		if err != nil && !s.patient {
			mu.Lock()
			lost = append(lost, s)
			mu.Unlock()
		}
	})
	e.dismissAll(ctx, lost)
}

// overdue is ctx.Err() at the moment of its deadline, and not when a busy machine has given its timer a processor.
// Calls end by their own timers, which may be faster: then a peer seemed to have had its time.
func overdue(ctx context.Context) error {
	if end, limited := ctx.Deadline(); limited && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// dismissAll ends the access of peers that have shown no newer proof. All of them lose their lanes before anybody waits
// for bytes under way.
func (e *Engine) dismissAll(ctx context.Context, lost []suspect) {
	lost = slices.DeleteFunc(lost, func(s suspect) bool { return !e.visitors.isAsSeen(s.visitor) })
	if len(lost) == 0 {
		return
	}
	mapped, unknown := e.mappings()
	for i := range lost {
		s := &lost[i]
		if s.kept = s.kept || unknown || mapped[s.peer.ID]; !s.kept {
			continue
		}
		if err := e.credentials.Bar(s.peer.ID); err != nil {
			e.log.Error("a peer that is not admitted any more may come again", "peer", s.peer.Address, "err", err)
		}
	}
	sideBySide(lost, renewalAsks, func(s suspect) { e.endLanes(s.peer.ID) })
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), dismissLimit)
	defer cancel()
	now := e.nextEpoch()
	sideBySide(lost, len(lost), func(s suspect) {
		cause := errs.New(errs.PeerNotAdmitted, "peer", "the peer is not admitted any more: %v", s.reason).
			WithScope(errs.ScopeLink, errs.SideRemote).OfPeer(s.peer.Address)
		epoch := now
		if s.kept {
			epoch = transport.ForGood
			e.visitors.dropAsSeen(s.visitor)
		} // the others stay listed: a call under way may have opened something, which the next look ends
		if err := e.endAccess(ending, s.peer, epoch, cause); err != nil {
			e.log.Error("a peer that is not admitted any more may still touch memory", "peer", s.peer.Address,
				"err", err)
		}
	})
}

// askAgain asks a peer for a handshake, by a connection of ours to it and within a limit, and returns it with the new
// proof. The error says why it has shown nothing that admits it.
func (e *Engine) askAgain(ctx context.Context, v visitor, limit time.Duration) (visitor, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	to, err := e.reachable(v.peer)
	if err != nil {
		return v, err
	}
	e.client.Forget(to.Address)
	greeting, err := e.client.Hello(ctx, to.Address)
	if err != nil {
		return v, err
	}
	if greeting.Peer.ID != v.peer.ID {
		return v, errs.New(errs.PeerRestarted, "peer", "another engine answers at %s", to.Address)
	}
	v.peer.Identity, v.proof = greeting.Peer.Identity, greeting.Proof
	return v, nil
}
