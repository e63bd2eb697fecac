package engine

import (
	"context"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/security"
)

// In mode mtls the files change while the engine runs: certificates are short-lived, and authorities are replaced.
// Transfers do not notice: lanes prove a secret of their own, and the engine's key stays (security, mtls.go).

const (
	expiryLook  = time.Second     // behind the end of a certificate, and between looks at ends at least
	renewalAsk  = 3 * time.Second // for the answer of a peer with an old certificate
	renewalAsks = 16              // at once
)

// ReloadSecurity reads the files of mode mtls again where one was replaced, and reports whether it changed anything. A
// list that is not nil takes the place of security/allow. Peers that are not admitted any more lose their access, see
// recheck. Running transfers of all others go on. After an error everything is as before. In other modes there are no
// files, and a list is InvalidArgument.
func (e *Engine) ReloadSecurity(ctx context.Context, allow []string) (changed bool, err error) {
	if err := e.usable(); err != nil {
		return false, err
	}
	changed, err = e.credentials.Reload(allow)
	switch {
	case err != nil:
		e.announce(&event.Event{Kind: event.SecurityReloaded, Err: errs.From("reload", err)})
		return false, err
	case changed:
		e.announce(&event.Event{Kind: event.SecurityReloaded, Note: "until " +
			e.credentials.Until().UTC().Format(time.RFC3339)})
		e.recheck(ctx, time.Now())
	}
	return changed, nil
}

// keepCredentials looks at the files and at the ends of peers' certificates, until the engine closes.
func (e *Engine) keepCredentials(ctx context.Context) {
	interval := e.config.Engine.Reload
	failed := "" // the last error, which is announced once
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
		changed, err := e.credentials.Reload(nil)
		switch {
		case err != nil && err.Error() != failed:
			failed = err.Error()
			e.announce(&event.Event{Kind: event.SecurityReloaded, Err: errs.From("reload", err)})
		case err == nil && changed:
			failed = ""
			e.announce(&event.Event{Kind: event.SecurityReloaded, Note: "until " +
				e.credentials.Until().UTC().Format(time.RFC3339)})
			e.recheck(ctx, time.Now())
		}
	}
}

// recheck ends the access of peers that are not admitted any more. It asks them first, side by side. A peer that is not
// listed loses it at once, others when they have shown nothing better within security/renewal_grace: they look at their
// files from time to time, as this engine does.
func (e *Engine) recheck(ctx context.Context, at time.Time) {
	e.rechecking.Lock()
	defer e.rechecking.Unlock()
	room := make(chan struct{}, renewalAsks)
	var asking sync.WaitGroup
	for _, v := range e.visitors.list() {
		reason := e.credentials.Still(v.proof, at)
		if reason == nil {
			continue
		}
		room <- struct{}{}
		asking.Go(func() {
			defer func() { <-room }()
			patient := !security.Unlisted(reason) &&
				at.Sub(e.visitors.ask(v.peer.ID, at)) < e.config.Engine.RenewalGrace
			if e.askAgain(ctx, v) == nil || patient {
				return
			}
			cause := errs.New(errs.PeerNotAdmitted, "peer", "the peer is not admitted any more: %v", reason).
				WithScope(errs.ScopeLink, errs.SideRemote).WithPeer(v.peer.Address, "", "")
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), dismissLimit)
			defer cancel()
			if err := e.dismiss(ending, v.peer, cause); err != nil {
				e.log.Error("a peer that is not admitted any more may still touch memory", "peer", v.peer.Address,
					"err", err)
			}
		})
	}
	asking.Wait()
}

// askAgain asks a peer for a handshake, by a connection of ours to it. The error says why it has shown nothing that
// admits it.
func (e *Engine) askAgain(ctx context.Context, v visitor) error {
	to, err := e.reachable(v.peer)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewalAsk)
	defer cancel()
	e.server.Expel(v.peer.ID) // it comes again by a handshake
	e.client.Forget(to.Address)
	greeting, err := e.client.Hello(ctx, to.Address)
	if err != nil {
		return err
	}
	if greeting.Peer.ID != v.peer.ID {
		return errs.New(errs.PeerRestarted, "peer", "another engine answers at %s", to.Address)
	}
	p := v.peer
	p.Identity = greeting.Peer.Identity
	e.shown(p, greeting.Proof)
	return nil
}
