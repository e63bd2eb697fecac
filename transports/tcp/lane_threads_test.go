package tcp

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func modelThreads(x *explorer, flaw string) {
	x.label("worker")
	x.await("epoll_wait", func(w *world, t *thread) bool {
		if t.events = w.kernel & out; w.readable() {
			t.events |= w.kernel & in
		}
		w.kernel = 0
		return t.events != 0
	})
	x.call("serve")
	x.goTo("worker")

	x.label("peer")
	x.await("peer", func(w *world, _ *thread) bool {
		if w.sent == 0 {
			return false
		}
		w.sent, w.answers = w.sent-1, w.answers+1
		return true
	})
	x.goTo("peer")

	x.label("peer with news")
	x.do("news", func(w *world, _ *thread) { w.news = true })
	x.goTo("peer")

	x.label("submitter")
	x.call("Submit")
	x.goTo("end")

	x.label("leaver") // in Poll it finds that others read and write
	x.do("leaver: polling", func(w *world, _ *thread) { w.polling = true })
	x.await("leaver: idle", locked(own, func(w *world, _ *thread) { w.busy = w.busy && w.ended < w.accepted }))
	x.goTo("waiter: leaves")

	x.label("submitter who polls")
	x.call("Submit")
	x.label("poller")
	x.call("Poll")
	x.maybe("poller")
	x.goTo("waiter: leaves")

	x.label("submitter who sleeps")
	x.call("Submit")
	x.label("sleeper")
	x.call("Poll")
	x.label("sleeper: parks")
	x.call("Watch")
	x.call("Arm")
	x.unless(func(t *thread) *bool { return &t.sleeps }, "waiter: leaves")
	x.sleep("ppoll", func(w *world, t *thread) bool { t.ok = w.readable(); return t.ok })
	x.call("Woken")
	x.maybe("sleeper: parks")
	x.label("waiter: leaves")
	if flaw != "a waiter leaves without Arm" {
		x.call("Arm")
	}
	x.label("end")
	x.stop()
}

// forgotten names the work that is left although nobody is about to do it, "" for none.
func forgotten(w *world) string {
	switch {
	case w.queued > 0:
		return "bytes wait to be written for ever"
	case w.readable():
		return "bytes wait to be read for ever"
	case w.ended < w.accepted:
		return "a slice has no end"
	}
	return ""
}

// unwatched names the fault of a lane that everybody has left, "" for none.
func unwatched(w *world) string {
	switch {
	case w.kernel&in == 0:
		return "epoll does not look for what comes next"
	case w.sleepers != 0 || w.arming || w.reading || w.writing || w.own || w.held:
		return "something is still held"
	}
	return ""
}

// searchLane searches the lane with these threads, from a moment at which it is idle.
func searchLane(flaw string, bulk bool, threads ...string) (trace string, states int) {
	x := laneModel(flaw, bulk)
	trace = x.search(world{interest: in, kernel: in}, threads, forgotten, unwatched)
	return trace, len(x.worlds)
}

// arounds are the threads around a lane.
var arounds = [][]string{
	{"worker", "peer", "submitter", "leaver"},
	{"worker", "worker", "peer", "submitter"},
	{"worker", "peer with news", "submitter who polls"},
	{"worker", "peer with news", "submitter who sleeps"}, // from here on for make test-all
	{"worker", "peer", "leaver", "submitter who sleeps"},
	{"worker", "peer", "leaver", "submitter who polls"},
}

// aroundsQuick are searched in every run.
const aroundsQuick = 3

// everyWorld reports that the others, of a million worlds each, run too.
func everyWorld() bool { return os.Getenv("TENT_WORLDS") == "all" }

// TestTheModelOfALaneLosesNoWakeUp searches all orders of steps, with READs that are small and with large ones.
func TestTheModelOfALaneLosesNoWakeUp(t *testing.T) {
	for i, threads := range arounds {
		if i >= aroundsQuick && !everyWorld() {
			break
		}
		for _, bulk := range []bool{false, true} {
			trace, worlds := searchLane("", bulk, threads...)
			require.Empty(t, trace)
			t.Logf("%v, much %v: %d worlds", threads, bulk, worlds)
		}
	}
}

func TestTheModelOfALaneFindsFlaws(t *testing.T) {
	for _, flaw := range flaws {
		if flaw.around >= aroundsQuick && !everyWorld() {
			continue
		}
		trace, worlds := searchLane(flaw.name, false, arounds[flaw.around]...)
		require.NotEmpty(t, trace, flaw.name)
		t.Logf("%s: %d worlds", flaw.name, worlds)
	}
}
