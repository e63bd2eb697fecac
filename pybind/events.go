package pybind

import (
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
)

// EventsOpen begins to follow the events of an engine, from the oldest one that is kept. It returns a file descriptor
// that is readable while some wait. It also names the follower.
func EventsOpen(id int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		follower, err := e.Follow()
		return int64(follower), err
	})
}

// EventsWait is 1 when events wait for a follower, after at most timeout.
func EventsWait(id, fd, timeoutMs int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		some, err := e.EventsWait(engine.FollowerID(fd), ms(timeoutMs))
		return one(some), err
	})
}

// EventsTake takes up to most events that a follower has not taken yet, oldest first: JSON {"lost", "events"}.
func EventsTake(id, fd, most int64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		list, lost, err := e.Events(engine.FollowerID(fd), int(most))
		if err != nil {
			return "", err
		}
		return toJSON(map[string]any{"lost": lost, "events": event.Records(list)}), nil
	})
}

// EventsClose ends following; the descriptor is closed.
func EventsClose(id, fd int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		e.Unfollow(engine.FollowerID(fd))
		return 0, nil
	})
}
