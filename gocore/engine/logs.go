package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
)

// logsMax bounds the records that wait for the program.
const logsMax = 1024

// LogRecord is one log line, for the program to show.
type LogRecord struct {
	Time    time.Time
	Level   slog.Level
	Message string
	Attrs   map[string]string
}

// logs is the queue of log records. A program that is late loses the older half of it, and learns their number.
type logs struct {
	level  slog.Level
	engine *Engine

	mu      sync.Mutex
	records []LogRecord
	lost    uint64 // that the program has not heard of
}

func (l *logs) push(r LogRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.records) >= logsMax {
		l.records = append(l.records[:0], l.records[logsMax/2:]...)
		l.lost += logsMax / 2
	}
	l.records = append(l.records, r)
}

// take removes up to most records, oldest first. Behind lost ones, the first that it returns says so.
func (l *logs) take(most int) (list []LogRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost > 0 && most > 0 {
		text := fmt.Sprintf("%d log records were lost: they came faster than they are taken", l.lost)
		list = append(list, LogRecord{time.Now(), slog.LevelWarn, text, map[string]string{}})
		l.lost = 0
	}
	n := min(max(0, most-len(list)), len(l.records))
	list = append(list, l.records[:n]...)
	l.records = append(l.records[:0], l.records[n:]...)
	return list
}

// Logs takes up to most log records since the last call, oldest first. Where some were lost, because they came faster
// than the program took them, the first one says so.
func (e *Engine) Logs(most int) []LogRecord { return e.logs.take(most) }

// event turns an event into its log line; the texts of failover and of rails are those of the failover seed, which
// people grep for. It reports whether a line was made.
func (l *logs) event(ev *event.Event) bool {
	level, text := l.lineOf(ev)
	if level < l.level {
		return false
	}
	attrs := map[string]string{}
	for k, v := range map[string]string{"peer": ev.Peer, "transport": ev.Transport, "rail": ev.Rail,
		"trace": ev.Trace} {
		if v != "" {
			attrs[k] = v
		}
	}
	if ev.Err != nil {
		attrs["cause"] = ev.Err.Error()
	}
	l.push(LogRecord{time.Now(), level, text, attrs})
	return true
}

func (l *logs) lineOf(ev *event.Event) (level slog.Level, text string) {
	level = slog.LevelInfo
	switch ev.Kind {
	case event.Failover:
		level, text = slog.LevelWarn, fmt.Sprintf("Transport failover: %s -> %s (attempt %d/%d)", ev.From, ev.To, ev.N,
			ev.M)
	case event.FailoverExhausted:
		level, text = slog.LevelError, fmt.Sprintf("Task failover limit reached (%d), last transport=%s", ev.M, ev.From)
	case event.FailoverNoRoute:
		level, text = slog.LevelError, fmt.Sprintf("No more transports available after %s failed", ev.From)
	case event.RailRecovered:
		text = fmt.Sprintf("Rail recovered: local_nic=%s remote_nic=%s (%s)", ev.Local, ev.Remote, ev.Note)
	case event.RailPaused:
		level, text = slog.LevelWarn, fmt.Sprintf("Rail paused: local_nic=%s remote_nic=%s (%s, for %v)",
			ev.Local, ev.Remote, ev.Note, ev.Took)
	case event.SharingOff:
		level, text = slog.LevelWarn, "Slots and load are not shared with other processes any more; transfers go on"
	case event.SlowPath:
		level, text = slog.LevelWarn, fmt.Sprintf("Slow path: %d %% of the expected rate: %s", ev.N, ev.Note)
	case event.SlowPathOver:
		text = fmt.Sprintf("Slow path is over: %d %% of the expected rate", ev.N)
	case event.MetricsOff:
		level, text = slog.LevelWarn, fmt.Sprintf("Metrics are not served at %s", ev.Note)
	case event.SharingOn:
		text = "Slots and load are shared with other processes again"
	case event.PeerRefused, event.AccessRefused:
		level, text = slog.LevelWarn, fmt.Sprintf("%s (%s, %d times)", ev.Kind, ev.Note, ev.N)
	case event.NameLost:
		level, text = slog.LevelWarn, "The metadata service does not hold the name of this engine"
	case event.NameBack:
		text = "The metadata service holds the name of this engine again"
	case event.SecurityReloaded:
		level, text = slog.LevelDebug, ev.Kind.String()
		if ev.Err != nil {
			level, text = slog.LevelWarn, "A reload of security has failed: what was read before counts on "+ev.Note
		}
	case event.Insecure:
		level, text = slog.LevelWarn, "insecure is true: whoever reaches this engine reads and writes what it shares"
	case event.RailDown, event.RailCondemned, event.LinkDown, event.PeerGone, event.Dirty, event.Stalled:
		level, text = slog.LevelWarn, ev.Kind.String()
		if ev.Kind == event.LinkDown && ev.Err != nil && ev.Err.Code == errs.InvalidEntry &&
			ev.Err.Side == errs.SideLocal {
			level = slog.LevelDebug // the user closed the segment: nothing is wrong
		}
		if orderly(ev) {
			level = slog.LevelDebug
		}
	case event.TransportStuck:
		level, text = slog.LevelError, fmt.Sprintf("A transport stands still: %s for %v, %s, and requests may wait "+
			"for it", ev.Transport, ev.Took.Round(time.Millisecond), ev.Note)
	case event.RegionHeld:
		level, text = slog.LevelError, fmt.Sprintf("A closed region is held: a driver of %s has not let its %d "+
			"bytes go for %v, so keep them as they are", ev.Transport, ev.Bytes, ev.Took.Round(time.Millisecond))
	case event.StrayCompletion:
		level, text = slog.LevelError, fmt.Sprintf("A defect of transport %s: %v", ev.Transport, ev.Err)
	case event.PeerSilent:
		level, text = slog.LevelWarn, fmt.Sprintf("Peer silent for %v, and not proved to be gone: transfers to it wait",
			ev.Took.Round(time.Millisecond))
	case event.PeerBack:
		text = fmt.Sprintf("Peer is back after %v: transfers go on", ev.Took.Round(time.Millisecond))
	case event.Traced:
		level, text = slog.LevelDebug, fmt.Sprintf("A transfer of the peer: %s, %d bytes", ev.Note, ev.Bytes)
	default:
		level, text = slog.LevelDebug, ev.Kind.String()
	}
	return level, text
}

// orderly reports an end that is no failure: of a rail, without a cause, or because the peer has closed its engine. Nor
// is it news where a rail that delivers nothing ends again: Rail paused has said so, and says for how long.
func orderly(ev *event.Event) bool {
	switch ev.Kind {
	case event.RailDown:
		return ev.Err == nil || ev.Note != ""
	case event.LinkDown, event.PeerGone:
		return ev.Err != nil && errors.Is(ev.Err, &errs.Error{Code: errs.EngineClosed})
	}
	return false
}

// handler puts the records of a slog.Logger into logs; attrs and group come from With.
type handler struct {
	logs  *logs
	attrs []slog.Attr
	group string
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.logs.level }

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	attrs := make(map[string]string, len(h.attrs)+r.NumAttrs())
	for _, a := range h.attrs {
		attrs[a.Key] = a.Value.String()
	}
	r.Attrs(func(a slog.Attr) bool { attrs[h.group+a.Key] = a.Value.String(); return true })
	h.logs.push(LogRecord{r.Time, r.Level, r.Message, attrs})
	h.logs.engine.signal.raise()
	return nil
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := append([]slog.Attr(nil), h.attrs...)
	for _, a := range attrs {
		a.Key = h.group + a.Key
		more = append(more, a)
	}
	return &handler{h.logs, more, h.group}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.logs, h.attrs, h.group + name + "."}
}
