package cuda

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
)

// restLimit is the time that Close has behind its caller's, once links and copies have ended.
const restLimit = time.Second

// end ends links and their goroutines, then copies, and then the rest, once. A device gives no copy back: where one
// does not end in time, the error names it, and the rest follows behind it, without the caller.
//
// Pinned memory goes last. The driver lets it go behind the work of all streams, and one of the program's may wait for
// anything; on a device that is lost it may never come back. That call, too, is left behind (decisions/0208).
func (t *copier) end(ctx context.Context, links func(), rest func(context.Context) error) error {
	ctx, cancel := access.Bounded(ctx)
	defer cancel()
	waits, leave := context.WithCancel(context.Background())
	defer leave()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-t.still: // the rest has a limit, and errors of its own
			time.AfterFunc(restLimit, leave)
		default:
			leave()
		}
	})
	defer stop()
	err := t.life.Close(waits, func() error {
		for number := range t.links.All() {
			t.Detach(number)
		}
		links()
		t.Stop()
		close(t.still)
		limited := ctx
		if ctx.Err() != nil { // the caller has left
			var done context.CancelFunc
			limited, done = context.WithTimeout(context.Background(), access.RevokeLimit)
			defer done()
		}
		err := rest(limited)
		t.letting.Store(&err)
		return errors.Join(err, t.unkeepAll(), t.room.close())
	})
	switch before := t.letting.Load(); {
	case err == nil || err != waits.Err():
		return err
	case before != nil:
		return errors.Join(*before, errs.New(errs.Timeout, t.op("close"),
			"the driver has not let pinned memory of the host go (%v)", ctx.Err()).
			WithScope(errs.ScopeTransport, errs.SideLocal).
			WithHint("a stream may wait for something, or a device is lost: keep the memory of regions as it is"))
	}
	return t.stuck(ctx.Err())
}

// unkeepAll lets the regions go that are still registered. No copy reaches them any more. Pages that stayed pinned
// would be copied in place of others that come to their addresses.
func (t *copier) unkeepAll() (failed error) {
	for key := range t.regions.All() {
		r := t.regions.Delete(key)
		if r == nil {
			continue
		}
		r.mu.Lock()
		r.pinned.Store(false)
		if err := r.unkeep(); err != nil && driver.Lost(r.keeper) == nil {
			failed = errors.Join(failed, err)
		}
		r.mu.Unlock()
	}
	return failed
}

// stuck names the copies that have not ended.
func (t *copier) stuck(cause error) error {
	const most = 4
	var names []string
	list := t.Begun()
	for _, s := range list[:min(len(list), most)] {
		names = append(names, fmt.Sprintf("a %s of %d bytes with %s", s.Op, s.Length, s.Link.Peer.Address))
	}
	if len(list) > most {
		names = append(names, fmt.Sprintf("and %d more", len(list)-most))
	}
	if len(names) == 0 {
		return errs.New(errs.Timeout, t.op("close"), "no time was left for it, and no device holds a copy (%v)", cause).
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	return errs.New(errs.Timeout, t.op("close"), "a device has not ended %s (%v)", strings.Join(names, "; "), cause).
		WithScope(errs.ScopeTransport, errs.SideLocal).
		WithHint("their memory must stay at both ends; look at the devices, by nvidia-smi and the kernel's log")
}
