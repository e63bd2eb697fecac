package dispatch

import "github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"

// Timers are few: one for each run of tasks that share a deadline, one or two for each link, rail and NIC. Times that
// count from the last progress of a task (stall limit, fence bound, retry intervals) are kept in lists instead. These
// are in order of time by themselves because all their members wait equally long.
type (
	timer  = intrusive.Timer[alarm]
	timers = intrusive.Timers[alarm]
)

// alarm names the record that a timer is for; one field is set.
type alarm struct {
	run    *run
	link   *link
	rail   *railState
	held   *link   // something of it may be admitted then
	device *device // is to be published
	peer   *peer   // owes an answer
}
