package pybind

import (
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
)

// EventsOpen begins to follow the events of an engine, from the oldest one that is kept. It returns a file descriptor
// that is readable while some wait. It also names the follower.
func EventsOpen(id int64) (fd int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	follower, err := e.Follow()
	return int64(follower), err
}

// EventsWait is 1 when events wait for a follower, after at most timeout.
func EventsWait(id, fd, timeoutMs int64) (yes int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	some, err := e.EventsWait(engine.FollowerID(fd), ms(timeoutMs))
	if some {
		yes = 1
	}
	return yes, err
}

// EventsTake takes up to most events that a follower has not taken yet, oldest first: JSON {"lost", "events"}.
func EventsTake(id, fd, most int64) (text string, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return "", err
	}
	list, lost, err := e.Events(engine.FollowerID(fd), int(most))
	if err != nil {
		return "", err
	}
	return toJSON(map[string]any{"lost": lost, "events": event.Records(list)}), nil
}

// EventsClose ends following; the descriptor is closed.
func EventsClose(id, fd int64) (n int64, err error) {
	defer guard(&err)
	e, err := get(id)
	if err != nil {
		return 0, err
	}
	e.Unfollow(engine.FollowerID(fd))
	return 0, nil
}
