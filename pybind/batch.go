package pybind

import (
	"encoding/binary"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
)

// NewBatch makes a batch for up to capacity tasks.
func NewBatch(id, capacity int64) (uint64, error) {
	return on(id, func(e *engine.Engine) (uint64, error) {
		if capacity < 1 || capacity > 1<<30 {
			return 0, errs.New(errs.InvalidArgument, "batch", "capacity %d is not between 1 and 2^30", capacity)
		}
		b, err := e.NewBatch(int(capacity))
		return uint64(b), err
	})
}

// FreeBatch gives a batch back; it goes when its last task has ended.
func FreeBatch(id int64, batch uint64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return 0, e.FreeBatch(dispatch.BatchID(batch))
	})
}

// FreeBatches gives n batches back; those that are stale are left out.
func FreeBatches(id int64, ids uint64, n int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		e.FreeBatches(words(ids, int(max(n, 0))))
		return n, nil
	})
}

// Submit adds n packed requests to a batch, all or none, and returns the index of the first. note is the address of a
// notification, 0 for none. Without asks it fails where it would have to ask a peer, see Ask.
func Submit(id int64, batch, requests uint64, n int64, note uint64, asks bool) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		list, err := records(requests, n)
		if err != nil {
			return 0, err
		}
		told, trace, err := noteAt(note)
		if err != nil {
			return 0, err
		}
		start := begin
		if asks {
			start = (*engine.Engine).Begin
		}
		c, err := start(e, engine.Terms{})
		if err != nil {
			return 0, err
		}
		if err := c.Trace(trace); err != nil { // noteAt has looked at its length
			c.Discard()
			return 0, err
		}
		if err := c.AddRecords(list); err != nil {
			c.Discard()
			return 0, err
		}
		i, err := c.CommitTo(dispatch.BatchID(batch), told)
		return int64(i), err
	})
}

// Cancel asks that a task (-1: all) end; it returns how many had not ended.
func Cancel(id int64, batch uint64, task int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		n, err := e.Cancel(dispatch.BatchID(batch), int(task))
		return int64(n), err
	})
}

// HoldStream makes a stream of a device wait for the end of a batch. It returns the address of the word that has the
// batch's state then.
func HoldStream(id int64, batch, stream uint64) (uint64, error) {
	return on(id, func(e *engine.Engine) (uint64, error) {
		return e.HoldStream(dispatch.BatchID(batch), stream)
	})
}

// StatusInto writes two words a task for n tasks from first: state | dirty<<8 | transport<<16 | attempts<<32, and
// bytes.
func StatusInto(id int64, batch uint64, first, n int64, address uint64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		if n < 0 || n > 1<<30 {
			return 0, errs.New(errs.InvalidArgument, "status", "%d tasks", n)
		}
		out := words(address, int(n)*2)
		for i := range int(n) {
			s, err := e.Status(dispatch.BatchID(batch), int(first)+i)
			if err != nil {
				return 0, err
			}
			out[2*i] = uint64(s.State) | uint64(s.Transport)<<16 | uint64(s.Attempts)<<32
			if s.Dirty {
				out[2*i] |= 1 << 8
			}
			out[2*i+1] = s.Bytes
		}
		return n, nil
	})
}

// Summary describes a batch in JSON.
func Summary(id int64, batch uint64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		s, err := e.Summary(dispatch.BatchID(batch))
		if err != nil {
			return "", err
		}
		used := []string{}
		for i, name := range e.Transports() {
			if s.Transports>>i&1 != 0 {
				used = append(used, name)
			}
		}
		return toJSON(map[string]any{"state": s.State, "bytes": s.Bytes, "total": s.Total, "tasks": s.Tasks,
			"attempts": s.Attempts, "failovers": s.Failovers, "transports": used, "trace": s.Trace,
			"elapsed_ns": e.Elapsed(dispatch.BatchID(batch)).Nanoseconds()}), nil
	})
}

// Failure describes in JSON why a batch did not complete; code is "" if it did or has not ended.
func Failure(id int64, batch uint64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		s, err := e.Summary(dispatch.BatchID(batch))
		if err != nil {
			return "", err
		}
		out := struct {
			errs.Record
			Attempts uint32 `json:"attempts"`
			Dirty    bool   `json:"dirty"`
			State    int    `json:"state"`
			Trace    string `json:"trace"`
		}{Attempts: s.Attempts, Dirty: s.Dirty, State: int(s.State), Trace: s.Trace}
		if s.Err != nil {
			out.Record = failureOf(s.Err)
		}
		return toJSON(out), nil
	})
}

// FailedInto writes the indexes of tasks that did not complete and returns how many there are, which may be more than
// fit.
func FailedInto(id int64, batch, address uint64, capacity int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return int64(e.Failed(dispatch.BatchID(batch), words(address, int(max(0, capacity))))), nil
	})
}

// Wait returns the state of a batch when it has ended, or after timeout.
func Wait(id int64, batch uint64, timeoutMs int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return int64(e.Wait(dispatch.BatchID(batch), ms(timeoutMs))), nil
	})
}

// WaitMany returns how many of n batches have ended, once need of them have or after timeout.
func WaitMany(id int64, ids uint64, n, need, timeoutMs int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		list := make([]dispatch.BatchID, n)
		for i, w := range words(ids, int(n)) {
			list[i] = dispatch.BatchID(w)
		}
		return int64(e.WaitMany(list, int(need), ms(timeoutMs))), nil
	})
}

// Watch asks that the end of a batch be pushed on the completion ring.
func Watch(id int64, batch uint64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return 0, e.Watch(dispatch.BatchID(batch))
	})
}

// Drain takes up to capacity ids of watched batches that have ended. It keeps Python's lock: it never waits.
func Drain(id int64, address uint64, capacity int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return int64(e.Drain(words(address, int(capacity)))), nil
	})
}

// UnderWay returns the number of batches that have begun and not ended.
func UnderWay(id int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) { return int64(e.UnderWay()), nil })
}

// Progress turns the crank once and returns how much was found.
func Progress(id int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return int64(e.Progress()), nil
	})
}

// NoteWait returns how many notifications wait, after at most timeout.
func NoteWait(id, timeoutMs int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return int64(e.NotesWait(ms(timeoutMs))), nil
	})
}

// NoteTake packs up to most notifications into size bytes. Each is u32 bytes of the record, u16 name bytes, u16 peer
// bytes, u32 message bytes, u32 trace bytes, name, peer, message, trace, padding to 8. It returns their number, or
// minus the bytes needed for the first.
func NoteTake(id int64, address uint64, size, most int64) (int64, error) {
	return on(id, func(e *engine.Engine) (n int64, err error) {
		out := mem.Bytes(uintptr(address), int(size))
		need := int64(0)
		e.NotesDrain(func(t *engine.Notification) bool {
			record := (16 + len(t.Name) + len(t.Peer) + len(t.Message) + len(t.Trace) + 7) &^ 7
			if n == most {
				return false
			}
			if record > len(out) {
				need = int64(record)
				return false
			}
			binary.LittleEndian.PutUint32(out, uint32(record))
			binary.LittleEndian.PutUint16(out[4:], uint16(len(t.Name)))
			binary.LittleEndian.PutUint16(out[6:], uint16(len(t.Peer)))
			binary.LittleEndian.PutUint32(out[8:], uint32(len(t.Message)))
			binary.LittleEndian.PutUint32(out[12:], uint32(len(t.Trace)))
			at := 16 + copy(out[16:], t.Name)
			at += copy(out[at:], t.Peer)
			at += copy(out[at:], t.Message)
			copy(out[at:], t.Trace)
			out = out[record:]
			n++
			return true
		})
		if n == 0 && need > 0 {
			return -need, nil
		}
		return n, nil
	})
}

// Explain returns in JSON which routes a request would take, and why not the others.
func Explain(
	id int64, op, priority, intent, policy, local, length uint64, segment int64, region, offset uint64,
) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		packed := request.Packed{Opcode: op, Priority: priority, IntentType: intent,
			PolicyName: policy}
		x, err := e.Explain(&engine.Request{Terms: packed.Terms(), Source: uintptr(local), Length: length,
			Remote: engine.Remote{Segment: engine.SegmentID(segment), Region: mem.RegionID(region), Offset: offset}})
		if err != nil {
			return "", err
		}
		return toJSON(x), nil
	})
}

// Topology returns the NICs, memories and distances of the machine, in JSON.
func Topology(id int64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		return e.Topology()
	})
}

// Metrics returns counters and gauges by name, in JSON.
func Metrics(id int64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		return toJSON(e.Metrics()), nil
	})
}

// MetricsText returns them in Prometheus' text format.
func MetricsText(id int64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		return e.MetricsText()
	})
}

// Logs takes up to most log records, oldest first, in JSON.
func Logs(id, most int64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		list := []map[string]any{}
		for _, r := range e.Logs(int(most)) {
			list = append(list, map[string]any{"time_ns": r.Time.UnixNano(), "level": r.Level.String(),
				"message": r.Message, "attrs": r.Attrs})
		}
		return toJSON(list), nil
	})
}
