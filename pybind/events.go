package pybind

import (
	"github.com/tent-engine/tent/gocore/engine"
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

// occurrence is an event as Python reads it.
type occurrence struct {
	Kind      string   `json:"kind"`
	Time      int64    `json:"time_ns"`
	Peer      string   `json:"peer"`
	Transport string   `json:"transport"`
	Rail      string   `json:"rail"`
	Local     string   `json:"local"`
	Remote    string   `json:"remote"`
	From      string   `json:"from"`
	To        string   `json:"to"`
	N         int      `json:"n"`
	M         int      `json:"m"`
	Note      string   `json:"note"`
	Took      int64    `json:"took_ns"`
	Bytes     uint64   `json:"bytes"`
	Health    int      `json:"health"`
	Error     *failure `json:"error"`
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
	out := make([]occurrence, len(list))
	for i := range list {
		ev := &list[i]
		out[i] = occurrence{Kind: ev.Kind.String(), Time: int64(ev.Time), Peer: ev.Peer, Transport: ev.Transport,
			Rail: ev.Rail, Local: ev.Local, Remote: ev.Remote, From: ev.From, To: ev.To, N: ev.N, M: ev.M,
			Note: ev.Note, Took: int64(ev.Took), Bytes: ev.Bytes, Health: ev.Health}
		if ev.Err != nil {
			f := failureOf(ev.Err)
			out[i].Error = &f
		}
	}
	return toJSON(map[string]any{"lost": lost, "events": out}), nil
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
