package tcp

// The model of an initiator's lane: its readers and writers, and their wake-ups. Labels are functions of this package.
// A step is one access to state that goroutines share without a lock, with the accesses under the lock around it
// (Lipton's reduction, 1975). TestTheModelOfALaneIsTheCode compares the two.
//
// The law: when nobody has anything to do, each slice that was submitted has its answer, the socket is empty, and epoll
// looks for the next bytes. So no wake-up is lost.

// Events, as EPOLLIN and EPOLLOUT.
const (
	in  = 1
	out = 2
)

// world is a lane with its socket and the threads around it. The socket is ready for EPOLLOUT at all times: a thread
// that wrote too little may be late with that, which is the same as a socket that was full.
type world struct {
	interest, kernel, sleepers    uint8 // kernel: the events in epoll, until it reports
	held, missed, dirty, wantOut  bool
	busy, bulk, deaf, attended    bool
	rests, sweeping, polling      bool
	arming, reading, writing, own bool // armMu, readMu, writeMu, mu

	accepted, ended uint8 // slices
	queued          uint8 // and those not written
	sent, answers   uint8 // at the peer, and in the socket
	news            bool  // a frame that nobody asked for is in the socket

	threads [5]thread
}

func (w *world) readable() bool { return w.answers > 0 || w.news }

// setInterest mirrors conn.setInterest. Holds armMu.
func (w *world) setInterest(events uint8) { w.interest, w.kernel = events, events }

// flaws are mistakes that the model finds, with the threads that it takes, by index in arounds. The package had the
// first five; the others are checks without which it would not work.
var flaws = []struct {
	name   string
	around int
}{
	{"a full socket is not watched when the poller leaves", 0},
	{"a reader does not arm the lane for a worker that came meanwhile", 4},
	{"a submitter disarms for a poller that has left", 0},
	{"a lane that comes back to the list is not armed", 4},
	{"a sleeper does not attend to its lane", 4},
	{"a lane that is left to a sleeper is not attended", 4},
	{"a lane that is left to a poller is not looked at again", 4},
	{"a lane is dismissed without another look", 4},
	{"a worker does not try again", 4},
	{"a waiter leaves without Arm", 0},
	{"a writer leaves a lane at rest", 0},
	{"a lane is asked before it rests", 0},
	{"a lane rests without a sweep", 2},
	{"a worker that only wrote does not arm", 0},
}

// laneModel writes the lane's functions down. flaw is a mistake to be made, "" for none; bulk makes READs large.
func laneModel(flaw string, bulk bool) *explorer {
	x := newExplorer()
	modelArming(x, flaw)
	modelAttendance(x, flaw)
	modelRest(x, flaw)
	modelWriting(x, flaw)
	modelReading(x, flaw)
	modelServing(x, flaw)
	modelWaiters(x, flaw, bulk)
	modelSubmit(x)
	modelThreads(x, flaw)
	return x
}

// locked makes a step that waits for a lock.
func locked(lock func(w *world) *bool, f func(w *world, t *thread)) func(*world, *thread) bool {
	return func(w *world, t *thread) bool {
		if *lock(w) {
			return false
		}
		f(w, t)
		return true
	}
}

func arming(w *world) *bool { return &w.arming }
func own(w *world) *bool    { return &w.own }
func there(t *thread) *bool { return &t.there }
func ok(t *thread) *bool    { return &t.ok }
func sole(t *thread) *bool  { return &t.sole }

func modelArming(x *explorer, flaw string) {
	notPolling := func(w *world, _ *thread) bool { return !w.polling }
	x.label("arm")
	x.await("arm: lock", locked(arming, func(w *world, t *thread) {
		if w.arming, t.events = true, 0; !w.held {
			t.events = in
		}
		if w.wantOut {
			t.events |= out
		}
	}))
	x.when("reduceInterest: !polling", notPolling, "arm: not polled")
	x.when("reduceInterest: bulk", func(w *world, _ *thread) bool { return w.bulk }, "arm: not polled")
	x.when("reduceInterest: rests", func(w *world, _ *thread) bool { return w.rests }, "arm: not polled")
	x.call("attend")
	if flaw != "a lane that is left to a poller is not looked at again" {
		x.when("reduceInterest: !polling", notPolling, "arm: not polled")
	}
	x.do("arm: left to a poller", func(w *world, t *thread) { w.arming, t.events = false, 0 })
	x.ret()
	x.label("arm: not polled")
	x.do("reduceInterest: sleepers", func(w *world, t *thread) {
		if t.ok = w.sleepers > 0; t.ok {
			t.events &^= in
		}
	})
	x.unless(ok, "arm: set")
	if flaw != "a lane that is left to a sleeper is not attended" {
		x.call("attend")
	}
	x.label("arm: set")
	x.do("reduceInterest: deaf", func(w *world, t *thread) {
		w.deaf = w.deaf && t.events == 0
	})
	x.do("reduceInterest: rests", func(w *world, t *thread) {
		w.rests = w.rests && t.events == 0
	})
	x.do("arm: unlock", func(w *world, t *thread) {
		if w.arming = false; t.events != 0 && t.events != w.interest {
			w.setInterest(t.events)
		}
		t.events = 0
	})
	x.ret()

	x.label("disarm")
	x.await("disarm: lock", locked(arming, func(w *world, t *thread) { w.arming, t.ok = true, w.interest != 0 }))
	x.unless(ok, "disarm: unlock")
	x.call("attend")
	if flaw != "a submitter disarms for a poller that has left" {
		x.when("disarm: !polling", notPolling, "disarm: unlock")
	}
	x.do("disarm: deaf", func(w *world, _ *thread) { w.deaf = true })
	x.do("disarm: set", func(w *world, _ *thread) { w.setInterest(0) })
	x.label("disarm: unlock")
	x.do("disarm: unlock", func(w *world, _ *thread) { w.arming = false })
	x.ret()
}

func modelAttendance(x *explorer, flaw string) {
	x.label("watched")
	x.await("watched", locked(arming, func(w *world, t *thread) {
		due := uint8(in)
		if w.wantOut && flaw != "a full socket is not watched when the poller leaves" {
			due |= out
		}
		t.ok = w.held || w.interest&due == due
	}))
	x.ret()

	x.label("attend")
	x.when("attend: attended", func(w *world, _ *thread) bool { return w.attended }, "attend: end")
	x.do("insert", func(w *world, _ *thread) { w.attended = true })
	x.label("attend: end")
	x.ret()

	x.label("walk")
	x.do("walk: begin", func(w *world, t *thread) { t.there = w.attended })
	x.maybe("walk: end") // it walks an array of before
	x.do("walk: entry", func(w *world, t *thread) { t.there = w.attended })
	x.label("walk: end")
	x.ret()

	x.label("Arm")
	x.do("Arm", func(w *world, _ *thread) { w.polling = false })
	x.call("walk")
	x.unless(there, "Arm: end")
	x.call("settle")
	x.label("Arm: end")
	x.ret()

	x.label("sweep")
	x.do("sweep", func(w *world, _ *thread) { w.sweeping = false })
	x.call("walk")
	x.unless(there, "sweep: end")
	x.when("sweep: !rests", func(w *world, _ *thread) bool { return !w.rests }, "sweep: end")
	x.call("arm")
	x.label("sweep: end")
	x.ret()
}

func modelRest(x *explorer, flaw string) {
	x.label("settle")
	x.call("watched")
	x.unless(ok, "settle: not watched")
	x.goTo("settle: armed")
	x.label("settle: not watched")
	rest := func(w *world, _ *thread) { w.rests = true }
	early := flaw == "a lane is asked before it rests"
	if !early {
		x.do("settle: rests", rest)
	}
	x.when("idle: wantOut", func(w *world, _ *thread) bool { return w.wantOut }, "settle: arm")
	x.await("idle", locked(own, func(w *world, t *thread) { t.ok = w.ended == w.accepted }))
	x.unless(ok, "settle: arm")
	if early {
		x.do("settle: rests", rest)
	}
	x.do("settle: not deaf", func(w *world, _ *thread) { w.deaf = false })
	if flaw != "a lane rests without a sweep" {
		x.do("sweepSoon", func(w *world, _ *thread) { w.sweeping = true })
	}
	x.goTo("settle: armed")
	x.label("settle: arm")
	x.call("arm")
	x.label("settle: armed")
	x.when("settle: busy", func(w *world, _ *thread) bool { return w.busy }, "settle: end")
	x.maybe("settle: end") // not calm for long
	x.when("settle: rests", func(w *world, _ *thread) bool { return w.rests }, "dismiss")
	x.call("watched")
	x.unless(ok, "settle: end")
	x.label("dismiss")
	x.do("dismiss: remove", func(w *world, _ *thread) { w.attended = false })
	if flaw != "a lane is dismissed without another look" {
		x.do("dismiss: busy", func(w *world, t *thread) { t.ok = w.busy })
		x.unless(ok, "dismiss: not busy")
		x.call("attend")
		x.label("dismiss: not busy")
		x.call("watched")
		x.unless(ok, "dismiss: arm")
		x.goTo("settle: end")
		x.label("dismiss: arm")
		if flaw == "a lane that comes back to the list is not armed" {
			x.call("attend")
		} else {
			x.call("arm")
		}
	}
	x.label("settle: end")
	x.ret()
}

func modelWriting(x *explorer, flaw string) {
	x.label("pump")
	x.when("pump: clean", func(w *world, _ *thread) bool { return !w.dirty }, "pump: end")
	x.when("pump: !TryLock", func(w *world, _ *thread) bool {
		taken := w.writing
		w.writing = true
		return taken
	}, "pump: end")
	x.do("write: !wantOut", func(w *world, _ *thread) { w.wantOut = false })
	x.label("write")
	x.do("write: clean", func(w *world, _ *thread) { w.dirty = false })
	x.await("write: nextVector", locked(own, func(w *world, t *thread) { t.ok = w.queued > 0 }))
	x.unless(ok, "write: nothing")
	x.maybe("write: unfinished") // the socket is full, or the budget used up
	x.do("write: send", func(w *world, _ *thread) { w.queued, w.sent = w.queued-1, w.sent+1 })
	x.goTo("write")
	x.label("write: unfinished")
	x.do("unfinished: dirty", func(w *world, _ *thread) { w.dirty = true })
	x.do("unfinished: wantOut", func(w *world, _ *thread) { w.wantOut = true })
	x.do("pump: unlock, blocked", func(w *world, _ *thread) { w.writing = false })
	x.call("arm")
	x.ret()
	x.label("write: nothing")
	x.do("pump: unlock", func(w *world, _ *thread) { w.writing = false })
	if flaw != "a writer leaves a lane at rest" {
		x.when("wrote: !rests", func(w *world, _ *thread) bool { return !w.rests }, "pump")
		x.when("wrote: polling", func(w *world, _ *thread) bool { return w.polling }, "pump")
		x.call("arm")
	}
	x.goTo("pump")
	x.label("pump: end")
	x.ret()
}

func tryReading(w *world, _ *thread) bool {
	free := !w.reading
	w.reading = true
	return free
}

func modelReading(x *explorer, flaw string) {
	x.label("drain") // until the socket is empty
	x.do("drain: receive", func(w *world, t *thread) {
		t.ok, t.got = w.readable(), w.answers
		w.answers, w.news = 0, false
	})
	x.unless(ok, "drain: end")
	x.await("drain: complete", locked(own, func(w *world, t *thread) { w.ended, t.got = w.ended+t.got, 0 }))
	x.when("answer: clean", func(w *world, _ *thread) bool { return !w.dirty }, "drain")
	x.when("answer: wantOut", func(w *world, _ *thread) bool { return w.wantOut }, "drain")
	x.call("pump")
	x.goTo("drain")
	x.label("drain: end")
	x.ret()

	x.label("letGo")
	x.do("letGo: unlock", func(w *world, _ *thread) { w.reading = false })
	if flaw != "a reader does not arm the lane for a worker that came meanwhile" {
		x.do("letGo: missed", func(w *world, t *thread) { w.missed, t.ok = false, w.missed })
		x.unless(ok, "letGo: end")
		x.call("arm")
	}
	x.label("letGo: end")
	x.ret()
}

func modelServing(x *explorer, flaw string) {
	x.label("serve")
	x.await("eventTaken", locked(arming, func(w *world, t *thread) {
		w.interest = 0
		t.ok, t.sole, t.events = t.events&out != 0, t.events == out, 0
	}))
	x.unless(ok, "serve: no EPOLLOUT")
	x.goTo("serve: write")
	x.label("serve: no EPOLLOUT")
	x.when("serve: !wantOut", func(w *world, _ *thread) bool { return !w.wantOut }, "serve: read")
	x.label("serve: write")
	x.do("serve: dirty", func(w *world, _ *thread) { w.dirty = true })
	x.call("pump")
	x.label("serve: read")
	x.unless(sole, "serve: may read")
	if flaw != "a worker that only wrote does not arm" {
		x.call("arm")
	}
	x.goTo("serve: end")
	x.label("serve: may read")
	x.when("takeReading: TryLock", tryReading, "serve: reading")
	x.do("takeReading: missed", func(w *world, _ *thread) { w.missed = true })
	if flaw != "a worker does not try again" {
		x.when("takeReading: TryLock", tryReading, "serve: reading")
	}
	x.when("serve: !wantOut", func(w *world, _ *thread) bool { return !w.wantOut }, "serve: end")
	x.call("arm")
	x.goTo("serve: end")
	x.label("serve: reading")
	x.await("holdReading", locked(arming, func(w *world, _ *thread) { w.interest, w.held = 0, true }))
	x.call("drain")
	x.await("holdReading: ends", locked(arming, func(w *world, _ *thread) { w.held = false }))
	x.call("letGo")
	x.call("arm")
	x.label("serve: end")
	x.ret()
}

func modelWaiters(x *explorer, flaw string, bulk bool) {
	x.label("Poll")
	x.do("Poll: polling", func(w *world, _ *thread) { w.polling = true })
	x.call("walk")
	x.unless(there, "Poll: end")
	x.when("Poll: busy", func(w *world, _ *thread) bool { return w.busy }, "poll")
	x.when("Poll: not deaf", func(w *world, _ *thread) bool { return !w.deaf }, "Poll: end")
	x.label("poll")
	x.await("poll: idle", locked(own, func(w *world, t *thread) {
		w.busy = w.busy && w.ended < w.accepted
		t.ok = bulk && w.ended < w.accepted
	}))
	x.do("poll: bulk", func(w *world, t *thread) { w.bulk = t.ok })
	x.unless(ok, "poll: little")
	x.when("poll: not deaf", func(w *world, _ *thread) bool { return !w.deaf }, "poll: write")
	x.call("arm")
	x.goTo("poll: write")
	x.label("poll: little")
	x.call("disarm")
	x.label("poll: write")
	x.when("poll: !wantOut", func(w *world, _ *thread) bool { return !w.wantOut }, "poll: read")
	x.do("poll: dirty", func(w *world, _ *thread) { w.dirty = true })
	x.call("pump")
	x.label("poll: read")
	x.when("poll: !TryLock", func(w *world, t *thread) bool { return !tryReading(w, t) }, "Poll: end")
	x.call("drain")
	x.call("letGo")
	x.label("Poll: end")
	x.ret()

	x.label("Watch")
	x.call("walk")
	x.unless(there, "Watch: end")
	x.when("Watch: !busy", func(w *world, _ *thread) bool { return !w.busy }, "Watch: end")
	x.label("sleepOn")
	x.await("sleepOn", locked(arming, func(w *world, t *thread) {
		if t.ok = !(w.held && w.bulk); t.ok {
			t.sleeps, w.arming, w.sleepers = true, true, w.sleepers+1
			if w.interest&in != 0 {
				w.setInterest(w.interest &^ in)
			}
		}
	}))
	x.unless(ok, "Watch: end")
	x.do("sleepOn: deaf", func(w *world, _ *thread) { w.deaf = true })
	if flaw != "a sleeper does not attend to its lane" {
		x.call("attend")
	}
	x.do("sleepOn: unlock", func(w *world, _ *thread) { w.arming = false })
	x.label("Watch: end")
	x.ret()

	x.label("Woken")
	x.await("wokeUp", locked(arming, func(w *world, _ *thread) { w.sleepers-- }))
	x.unless(ok, "Woken: end")
	x.when("Woken: !TryLock", func(w *world, t *thread) bool { return !tryReading(w, t) }, "Woken: end")
	x.call("drain")
	x.call("letGo")
	x.label("Woken: end")
	x.ret()
}

func modelSubmit(x *explorer) {
	x.label("Submit")
	x.await("accept: lock", locked(own, func(w *world, _ *thread) {
		w.own, w.accepted, w.queued = true, w.accepted+1, w.queued+1
	}))
	x.do("expect: busy", func(w *world, _ *thread) { w.busy = true })
	x.call("attend")
	x.do("accept: unlock", func(w *world, _ *thread) { w.dirty, w.own = true, false })
	x.do("Submit: polled", func(w *world, t *thread) { t.ok = w.polling })
	x.when("Submit: clean", func(w *world, t *thread) bool { return !w.dirty }, "Submit: end")
	x.when("Submit: wantOut", func(w *world, t *thread) bool { return w.wantOut }, "Submit: end")
	x.unless(ok, "Submit: pump")
	x.when("Submit: bulk", func(w *world, _ *thread) bool { return w.bulk }, "Submit: pump")
	x.call("disarm")
	x.label("Submit: pump")
	x.call("pump")
	x.label("Submit: end")
	x.do("Submit: end", func(_ *world, t *thread) { t.ok = false })
	x.ret()
}
