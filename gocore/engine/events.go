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

const logsMax = 1024

// bounded keeps the newest items. A reader that is late loses the oldest ones, and dropped counts them until lost.
type bounded[T any] struct {
	mu      sync.Mutex
	items   []T
	limit   int
	dropped uint64
}

func (b *bounded[T]) push(item T) {
	b.mu.Lock()
	if len(b.items) >= b.limit {
		b.items = append(b.items[:0], b.items[b.limit/2:]...)
		b.dropped += uint64(b.limit / 2)
	}
	b.items = append(b.items, item)
	b.mu.Unlock()
}

// lost returns the number of items that no reader saw since the last call.
func (b *bounded[T]) lost() (n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, b.dropped = b.dropped, 0
	return n
}

func (b *bounded[T]) drain(most int) []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(most, len(b.items))
	out := append([]T(nil), b.items[:n]...)
	b.items = append(b.items[:0], b.items[n:]...)
	return out
}

// LogRecord is one log line, for the program to show.
type LogRecord struct {
	Time    time.Time
	Level   slog.Level
	Message string
	Attrs   map[string]string
}

// Logs takes up to most log records since the last call, oldest first. Where some were lost, because they came faster
// than the program took them, the first one says so.
func (e *Engine) Logs(most int) []LogRecord {
	n := e.logs.records.lost()
	if n == 0 {
		return e.logs.records.drain(most)
	}
	text := fmt.Sprintf("%d log records were lost: they came faster than they are taken", n)
	said := LogRecord{time.Now(), slog.LevelWarn, text, map[string]string{}}
	return append([]LogRecord{said}, e.logs.records.drain(most-1)...)
}

// logs is the engine's slog.Handler: records go into a bounded ring that the Python thread empties into logging.
type logs struct {
	records bounded[LogRecord]
	level   slog.Level
	engine  *Engine
}

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
	l.records.push(LogRecord{time.Now(), level, text, attrs})
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
		level, text = slog.LevelWarn, fmt.Sprintf("Rail paused: local_nic=%s remote_nic=%s (%d errors, for %v)",
			ev.Local, ev.Remote, ev.N, ev.Took)
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

// orderly reports an end that is no failure: of a rail, without a cause, or because the peer has closed its engine.
func orderly(ev *event.Event) bool {
	switch ev.Kind {
	case event.RailDown:
		return ev.Err == nil
	case event.LinkDown, event.PeerGone:
		return ev.Err != nil && errors.Is(ev.Err, &errs.Error{Code: errs.EngineClosed})
	}
	return false
}

// handler adapts logs to slog; attrs and group come from With.
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
	h.logs.records.push(LogRecord{r.Time, r.Level, r.Message, attrs})
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
