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

	x.label("sweeper") // no slice may need it
	x.timer("sweep is due", func(w *world) bool { return w.sweeping })
	x.call("sweep")
	x.goTo("sweeper")

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

	x.label("leaver") // in Poll it finds that others read and write, or nothing
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
	case w.answers > 0 || w.news && !w.sweeping:
		return "bytes wait to be read for ever"
	case w.ended < w.accepted:
		return "a slice has no end"
	}
	return ""
}

// unwatched names the fault of a lane that everybody has left, "" for none.
func unwatched(w *world) string {
	switch {
	case w.kernel&in == 0 && !(w.rests && w.sweeping):
		return "epoll does not look for what comes next"
	case w.sleepers != 0 || w.arming || w.reading || w.writing || w.own || w.held:
		return "something is still held"
	}
	return ""
}

// idleLanes are the worlds in which a search begins: with a lane in epoll, one that rests, and one that a leaver has
// polled.
var idleLanes = []world{
	{interest: in, kernel: in},
	{rests: true, sweeping: true, attended: true},
	{deaf: true, attended: true, polling: true},
}

// around is the threads around a lane, and the number of idle lanes with which they begin.
type around struct {
	begins  int
	threads []string
}

// search searches the lane with these threads.
func (a around) search(flaw string, bulk bool) (trace string, states int) {
	for _, first := range idleLanes[:a.begins] {
		x := laneModel(flaw, bulk)
		trace = x.search(first, a.threads, forgotten, unwatched)
		if states += len(x.worlds); trace != "" {
			break
		}
	}
	return trace, states
}

var arounds = []around{
	{3, []string{"sweeper", "worker", "peer", "submitter", "leaver"}},
	{2, []string{"worker", "worker", "peer", "submitter"}},
	{1, []string{"sweeper", "worker", "peer with news", "submitter who polls"}},
	{1, []string{"worker", "peer with news", "submitter who sleeps"}}, // from here on for make test-all
	{1, []string{"worker", "peer", "leaver", "submitter who sleeps"}},
	{1, []string{"worker", "peer", "leaver", "submitter who polls"}},
	{2, []string{"sweeper", "worker", "peer with news", "submitter who polls"}},
}

// aroundsQuick are searched in every run.
const aroundsQuick = 3

// everyWorld reports that the others, of a million worlds each, run too.
func everyWorld() bool { return os.Getenv("TENT_WORLDS") == "all" }

// TestTheModelOfALaneLosesNoWakeUp searches all orders of steps, with READs that are small and with large ones.
func TestTheModelOfALaneLosesNoWakeUp(t *testing.T) {
	for i, a := range arounds {
		if i >= aroundsQuick && !everyWorld() {
			break
		}
		for _, bulk := range []bool{false, true} {
			trace, worlds := a.search("", bulk)
			require.Empty(t, trace)
			t.Logf("%v, much %v: %d worlds", a.threads, bulk, worlds)
		}
	}
}

func TestTheModelOfALaneFindsFlaws(t *testing.T) {
	for _, flaw := range flaws {
		if flaw.around >= aroundsQuick && !everyWorld() {
			continue
		}
		trace, worlds := arounds[flaw.around].search(flaw.name, false)
		require.NotEmpty(t, trace, flaw.name)
		t.Logf("%s: %d worlds", flaw.name, worlds)
	}
}
