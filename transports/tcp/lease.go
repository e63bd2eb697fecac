package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// A responder holds a lease on the bytes in its sockets: it may write them into its regions for Settings.Lease after
// they came. A process that slept for longer (SIGSTOP, a paused machine) asks their sender first, which may have
// given them up.
//
// The kernel stamps packets (SO_TIMESTAMPNS). It joins a short packet to the one before, which then has the stamp of
// the newer one: behind a few KiB that were given up, the questions of their sender would make all of it look new. So
// the transport also has a pulse, and finds a sleep by the beats that it has missed. (Decision 0184.)

// askWantedLimit bounds the question to the sender.
const askWantedLimit = 5 * time.Second

// beats is the number of beats of a lease.
const beats = 4

// pulse finds out by a timer whether this process slept for longer than the lease. It begins with the first lane of a
// peer.
type pulse struct {
	began atomic.Bool
	timer *time.Timer
	last  atomic.Int64 // clock.Time of the last beat
	woke  atomic.Int64 // and of the first one behind the last sleep
}

func (t *Transport) beginPulse() {
	if p := &t.pulse; !p.began.Load() && !p.began.Swap(true) {
		p.last.Store(int64(clock.Now()))
		p.timer.Reset(t.settings.Lease / beats)
	}
}

func (t *Transport) beat() {
	p, now := &t.pulse, clock.Now()
	if p.missed(now, t.settings.Lease) {
		p.woke.Store(int64(now))
	}
	p.last.Store(int64(now))
	if !t.life.Closed() {
		p.timer.Reset(t.settings.Lease / beats)
	}
}

// missed reports that the beats of more than a lease have been left out until now.
func (p *pulse) missed(now clock.Time, lease time.Duration) bool {
	return now.Sub(clock.Time(p.last.Load())) > lease
}

// sleptSince reports that this process slept for longer than the lease, and was awake no earlier than at a time.
func (p *pulse) sleptSince(looked, now clock.Time, lease time.Duration) bool {
	return clock.Time(p.woke.Load()) > looked || p.missed(now, lease)
}

// overLease reports that the lane must not be read now. This process slept for longer than the lease, and bytes have
// been waiting in the socket since. Their sender is asked whether it still wants them written. Holds readMu.
func (l *responderLane) overLease() bool {
	x := &l.rx
	now, looked := clock.Now(), x.last
	x.last = now
	a := l.attachment.Load()
	lease := l.t.settings.Lease
	if now.Sub(looked) <= lease || (a == nil && l.admission == nil) {
		return false
	}
	age, waiting := arrivalAge(l.fd)
	if !x.holdsChunk() && (!waiting || age <= lease && !l.t.pulse.sleptSince(looked, now, lease)) {
		return false
	}
	if a == nil { // frames may lie behind the proof
		l.endBy(eventLate, l.refuse(transport.RefusedSilence, "this process slept during the handshake"))
		return true
	}
	if !l.t.spawn(func() { l.askWanted(a) }) { // it waits for readMu before it lets the lane go on
		return false
	}
	l.life.advance(eventStale)
	return true
}

// askWanted asks the sender and lets the lane go on, without the slices that are void, or ends it.
func (l *responderLane) askWanted(a *attachment) {
	void, err := l.unwanted(a)
	if err != nil {
		l.broke(errs.Wrap(errs.StaleGeneration, "tcp.lease", err).WithScope(errs.ScopeRail, errs.SideLocal).
			WithPeer(a.peer.Address, Name, ""))
		return
	}
	l.voidUnlanded(void)
	l.readMu.Lock()
	l.rx.last = clock.Now()
	l.life.advance(eventWanted)
	l.letGo()
	l.arm()
}

// unwanted returns the numbers that the sender has given up, or an error when the lane is not its any more.
func (l *responderLane) unwanted(a *attachment) (void []record, err error) {
	ctx, cancel := context.WithTimeout(l.t.quit, askWantedLimit)
	defer cancel()
	message := append([]byte{a.spoken, callWanted}, a.id[:]...)
	message = binary.LittleEndian.AppendUint64(message, l.id)
	answer, err := l.t.ask(ctx, a.peer, message)
	if err != nil {
		return nil, err
	}
	r := kit.NewReader(answer)
	if v, _, known := r.U8(), r.ID(), r.U8(); v != a.spoken || known == 0 || r.Short() {
		return nil, errors.New("not wanted any more")
	}
	err = readFrames(r, func(_ header, table []record) error {
		void = append(void, table...)
		return nil
	})
	return void, err
}
