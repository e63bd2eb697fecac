package engine

import (
	"context"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/security"
)

// OpenOptions bound an open by OpenWith. The zero value is OpenSegment.
type OpenOptions struct {
	// Identities are patterns of security.Names for the engine; nil is any. One that proves to be somebody else is
	// PeerNotAdmitted, and is told nothing but the hello.
	Identities []string
	// Another opens other engines alone, as OpenPeer.
	Another bool
	// Wait waits, until ctx ends, for an engine that has not started yet or starts again, and for its region. The error
	// is then the last cause.
	Wait bool
}

// OpenWith is OpenSegment with options.
func (e *Engine) OpenWith(ctx context.Context, name string, o OpenOptions) (SegmentID, error) {
	wanted, err := parseIdentities(o.Identities)
	if err != nil {
		return 0, err
	}
	var last error
	for pause := waitMin; ; pause = min(2*pause, waitMax) {
		if err := e.usable(); err != nil {
			return 0, err
		}
		target, err := e.store.Resolve(ctx, name)
		if err == nil {
			var id SegmentID
			if id, err = e.openResolved(ctx, name, target, wanted, o.Another); err == nil {
				return id, nil
			}
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if !o.Wait || !comesLater(err) {
			return 0, last
		}
		e.awaitChange(ctx, name, target, pause, err)
		if ctx.Err() != nil {
			return 0, last
		}
	}
}

// The pauses between two attempts to open an engine that is awaited.
const (
	waitMin = 50 * time.Millisecond
	waitMax = time.Second
)

// comesLater reports whether an open may succeed when an engine starts, or when it registers a region.
func comesLater(err error) bool {
	switch errs.CodeOf(err) {
	case errs.InvalidEntry, errs.AddressNotRegistered, errs.PeerUnreachable, errs.PeerRestarted, errs.MetadataError:
		return true
	}
	return false
}

// awaitChange waits until a name leads elsewhere. An engine that cannot be reached, and a region that it lacks, may be
// there after a pause without a change of the name.
func (e *Engine) awaitChange(ctx context.Context, name string, target meta.Target, pause time.Duration, cause error) {
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if errs.CodeOf(cause) != errs.InvalidEntry {
		waiting, cancel = context.WithTimeout(ctx, pause)
	}
	defer cancel()
	e.store.Changed(waiting, name, target)
}

// openResolved opens the target of a name.
func (e *Engine) openResolved(ctx context.Context, name string, target meta.Target, wanted *security.Names,
	another bool) (SegmentID, error) {
	switch local := target.File != "" || target.Local(); {
	case local && another:
		return 0, noPeer(name)
	case local && wanted != nil:
		return 0, errs.New(errs.InvalidArgument, "open", "%q is no peer, and proves no identity", name)
	case target.File != "":
		return e.openFileNamed(ctx, target.File)
	case !another && e.isOwn(target, wanted) && target.Region == "":
		return Local, nil
	}
	return e.openTarget(ctx, target, wanted, another)
}

// isOwn reports whether a target needs no question: it is this engine, and no identity is to be proved. The entry of a
// name may have our address and another engine's ID: that one has ended, or its loopback address is another network's.
func (e *Engine) isOwn(target meta.Target, wanted *security.Names) bool {
	return target.Local() || target.Address == e.address && wanted == nil &&
		(target.ID == "" || target.ID == e.credentials.ID().String())
}

// parseIdentities reads the identities that an opener wants, nil for any.
func parseIdentities(identities []string) (*security.Names, error) {
	if identities == nil {
		return nil, nil
	}
	return security.ParseNames("identity", identities)
}

func noPeer(name string) *errs.Error {
	name = errs.Printable(name, strangerTextMax)
	return errs.New(errs.InvalidArgument, "open peer", "%q is not another engine", name).
		WithHint("open() opens files and the engine itself")
}

// logRoutes logs the transports that may carry bytes to a peer that was opened, in order of preference, and the reason
// against each other one.
func (e *Engine) logRoutes(p *peer) {
	var routes, without []string
	for i, a := range *p.links.Load() {
		port := e.ports[i]
		switch {
		case a.id != 0:
			routes = append(routes, port.name)
		case p.misfit(&port.info) != "": // it is for files
		case port.transport == nil:
			without = append(without, port.name+": "+port.reason)
		default:
			without = append(without, port.name+": "+a.why)
		}
	}
	e.log.Info("A peer was opened", "peer", p.identity.Address, "routes", strings.Join(routes, ", "),
		"without", strings.Join(without, "; "))
}
