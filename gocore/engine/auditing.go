package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/audit"
	"github.com/tent-engine/tent/gocore/event"
)

// openAudit opens the file of security/audit, if it is set.
func (e *Engine) openAudit(path string) (err error) {
	if path == "" {
		return nil
	}
	e.audit, err = audit.Open(path, func(err error) { e.log.Error("security events are lost", "err", err) })
	return err
}

// auditGrace bounds the wait for the disk of security/audit at the end.
const auditGrace = time.Second

// closeAudit ends the audit file, and says in the log that lines are not in it.
func (e *Engine) closeAudit() {
	if lost := e.audit.Close(auditGrace); lost > 0 {
		e.log.Error("security events are not in security/audit: their disk stands still, or they were too many", "n",
			lost)
	}
}

// auditOpened notes the start of the engine.
func (e *Engine) auditOpened() {
	mode := fmt.Sprintf("mode %v at %s, data %v", e.credentials.Mode(), e.address, e.protection)
	e.audit.Note(audit.Entry{Engine: e.name, Event: "engine_opened", Note: mode})
}

// noteSecurity adds an event to the audit file, if it is about admission, rights or names. All of these are announced,
// so no lock of the core is held.
func (e *Engine) noteSecurity(ev *event.Event) {
	if e.audit == nil {
		return
	}
	switch ev.Kind {
	case event.PeerAdmitted, event.PeerRefused, event.AccessRefused, event.PeerDisconnected, event.SecurityReloaded,
		event.Insecure, event.NameLost, event.NameBack, event.LeaseMade, event.LeaseEnded:
	default:
		return
	}
	line := audit.Entry{Engine: e.name, Event: ev.Kind.String(), Peer: ev.Peer, ID: ev.ID, Host: ev.Host,
		Transport: ev.Transport, Note: ev.Note, N: ev.N}
	if ev.Kind == event.LeaseMade || ev.Kind == event.LeaseEnded {
		line.Note = strings.TrimSpace(ev.Rail + " " + ev.Note)
	}
	if ev.Err != nil {
		line.Error = ev.Err.Error()
	}
	e.audit.Note(line)
}
