package rdma

import (
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// prove sends an empty WRITE, which the other end acknowledges only if the path works in both directions.
func (r *rail) prove() error {
	ended := make(chan *errs.Error, 1)
	r.mu.Lock()
	r.slabLocked()
	proof := &r.slab[slicesMax]
	sent := proof.out == 0 && r.probeOn(proof, func(err *errs.Error) { ended <- err })
	r.unlock()
	if !sent {
		return errs.New(errs.Lost, Name, "no lane of the rail works").WithScope(errs.ScopeRail, errs.SideUnknown)
	}
	timer := time.NewTimer(r.link.t.settings.DialLimit)
	defer timer.Stop()
	var err *errs.Error
	select {
	case err = <-ended:
	case <-r.link.ctx.Done():
		return r.link.ctx.Err()
	case <-timer.C:
		err = errs.New(errs.Timeout, Name, "nobody acknowledges").WithScope(errs.ScopeRail, errs.SidePath)
	}
	r.addressing.judge(err == nil)
	r.mu.Lock()
	defer r.unlock()
	r.proving = false
	if err != nil {
		r.failLanesLocked(err)
		return err
	}
	r.pumpLocked()
	return nil
}

// probeLocked posts an empty WRITE, as far as there is room.
func (r *rail) probeLocked(done func(*errs.Error)) bool {
	o := r.vacantLocked()
	if o == nil {
		return false
	}
	sent := r.probeOn(o, done)
	if !sent {
		r.free = append(r.free, o.index)
	}
	return sent
}

// probeOn posts it on the first lane for WRITEs that has room.
func (r *rail) probeOn(o *op, done func(*errs.Error)) bool {
	for _, l := range r.lanes[:len(r.link.t.plan.lanes)] {
		if !l.works || l.room() < 1 {
			continue
		}
		o.carried = carried{probed: done, lane: l, whole: true, out: 1}
		wr := l.appendLocked(posted{op: o.index})
		wr.Like(&verbs.WR{ID: wr.ID, Op: verbs.OpWrite, Flags: verbs.Signaled})
		l.postLocked()
		return true
	}
	return false
}
