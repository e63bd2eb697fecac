package event

import "github.com/tent-engine/tent/gocore/errs"

// Record is an event in JSON: for Python, and for viewers in other processes.
type Record struct {
	Kind      string       `json:"kind"`
	Time      int64        `json:"time_ns"` // of the monotonic clock
	Peer      string       `json:"peer"`
	Transport string       `json:"transport"`
	Rail      string       `json:"rail"`
	Local     string       `json:"local"`
	Remote    string       `json:"remote"`
	From      string       `json:"from"`
	To        string       `json:"to"`
	N         int          `json:"n"`
	M         int          `json:"m"`
	Note      string       `json:"note"`
	Took      int64        `json:"took_ns"`
	Bytes     uint64       `json:"bytes"`
	Health    int          `json:"health"`
	Error     *errs.Record `json:"error"`
	Trace     string       `json:"trace"`
}

// Records returns events for JSON.
func Records(list []Event) []Record {
	out := make([]Record, len(list))
	for i := range list {
		e := &list[i]
		out[i] = Record{Kind: e.Kind.String(), Time: int64(e.Time), Peer: e.Peer, Transport: e.Transport, Rail: e.Rail,
			Local: e.Local, Remote: e.Remote, From: e.From, To: e.To, N: e.N, M: e.M, Note: e.Note, Took: int64(e.Took),
			Bytes: e.Bytes, Health: e.Health, Trace: e.Trace}
		if e.Err != nil {
			record := e.Err.Record()
			out[i].Error = &record
		}
	}
	return out
}
