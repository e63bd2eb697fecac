// Package pybind is the flat surface that gopy wraps into the extension tent._gotent: integers, addresses and strings
// only, no handles, no callbacks, no slices. Engines are numbers of a table; the text of an error is a JSON
// object that the Python layer turns into an exception. Python passes addresses only of memory that it keeps alive for
// the length of the call (indexes, records) or until the transfer has ended (payload).
package pybind

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	_ "github.com/go-python/gopy/gopyh" // keeps gopy a direct requirement, so that its builds leave go.mod alone

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/transports/all"
)

// Version of the wire protocol of this build.
func Version() string { return engine.Version }

// opened is an engine, the faults that are injected into it, and its builders.
type opened struct {
	engine   *engine.Engine
	faults   *all.Faults // nil: nothing
	builders *builders
	ended    *engine.Engine // one that was forgotten, while memory of Allocate is left
}

// engines is read on every call, so it is replaced as a whole: number -> engine, nil where it was forgotten.
var (
	engines   atomic.Pointer[[]opened]
	enginesMu sync.Mutex
)

func add(e *engine.Engine, faults *all.Faults) int64 {
	enginesMu.Lock()
	defer enginesMu.Unlock()
	var list []opened
	if p := engines.Load(); p != nil {
		list = append(list, *p...)
	}
	list = append(list, opened{engine: e, faults: faults, builders: newBuilders()})
	engines.Store(&list)
	return int64(len(list) - 1)
}

// entry returns the place of a number in the table, also where its engine was forgotten.
func entry(id int64) (opened, bool) {
	if p := engines.Load(); p != nil && id >= 0 && id < int64(len(*p)) {
		return (*p)[id], true
	}
	return opened{}, false
}

// find returns the entry of an open engine.
func find(id int64) (opened, error) {
	if o, is := entry(id); is && o.engine != nil {
		return o, nil
	}
	return opened{}, noEngine(id)
}

// allOpen returns the engines that are open.
func allOpen() (list []*engine.Engine) {
	if p := engines.Load(); p != nil {
		for _, o := range *p {
			if o.engine != nil {
				list = append(list, o.engine)
			}
		}
	}
	return list
}

func noEngine(id int64) *errs.Error {
	return errs.New(errs.EngineClosed, "engine", "engine %d is closed", id)
}

func get(id int64) (*engine.Engine, error) {
	o, err := find(id)
	return o.engine, err
}

// with calls f with all that belongs to an open engine. An error and a panic both come out as pybind's errors do.
func with[T any](id int64, f func(opened) (T, error)) (result T, err error) {
	defer guard(&err)
	o, err := find(id)
	if err != nil {
		return result, err
	}
	return f(o)
}

// on does the same with the engine alone.
func on[T any](id int64, f func(*engine.Engine) (T, error)) (T, error) {
	return with(id, func(o opened) (T, error) { return f(o.engine) })
}

// within does the same in a limit of time.
func within[T any](id, timeoutMs int64, f func(context.Context, *engine.Engine) (T, error)) (T, error) {
	return on(id, func(e *engine.Engine) (T, error) {
		ctx, cancel := limited(timeoutMs)
		defer cancel()
		return f(ctx, e)
	})
}

// limited is a context with a limit of the program. It ends later where this process is stopped meanwhile.
func limited(timeoutMs int64) (context.Context, context.CancelFunc) {
	return clock.WithTimeout(context.Background(), ms(timeoutMs))
}

// ms is n milliseconds, or the longest time where that would overflow: 292 years either way.
func ms(n int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(max(-most, min(n, most))) * time.Millisecond
}

// one is 1 for true: results are integers and texts.
func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

// replace changes the entry of a number. The caller holds enginesMu.
func replace(id int64, with opened) {
	list := append([]opened(nil), *engines.Load()...)
	list[id] = with
	engines.Store(&list)
}

// remove drops the number of a closed engine. A second time does nothing.
func remove(id int64) error {
	enginesMu.Lock()
	defer enginesMu.Unlock()
	o, is := entry(id)
	if !is {
		return noEngine(id)
	}
	if o.engine == nil {
		return nil
	}
	if err := o.engine.Forget(); err != nil {
		return err
	}
	replace(id, opened{ended: o.engine})
	pruneLocked(id)
	return nil
}

// freeMemory unmaps memory of Allocate. A forgotten engine is there for this alone, and goes with its last memory.
func freeMemory(id int64, region mem.RegionID) error {
	o, _ := entry(id)
	e := cmp.Or(o.engine, o.ended)
	if e == nil {
		return noEngine(id)
	}
	if err := e.FreeMemory(region); err != nil {
		return err
	}
	enginesMu.Lock()
	defer enginesMu.Unlock()
	pruneLocked(id)
	return nil
}

// pruneLocked lets go of an engine that was forgotten, if no memory of it is left.
func pruneLocked(id int64) {
	if o, _ := entry(id); o.ended != nil && o.ended.Allocations() == 0 {
		replace(id, opened{})
	}
}

// guard turns a panic into an error, which gopy would turn into the end of the process, and any error into JSON. Where
// the panic has left an engine locked, it does end the process.
func guard(err *error) {
	if p := recover(); p != nil {
		for _, e := range allOpen() {
			e.EndIfStuck(p)
		}
		*err = errs.New(errs.Internal, "engine", "a bug in tent: %v", p).WithHint("please report: %s",
			firstLines(debug.Stack()))
	}
	if *err != nil {
		*err = errors.New(describe(*err))
	}
}

func firstLines(stack []byte) string {
	if len(stack) > 2000 {
		stack = stack[:2000]
	}
	return string(stack)
}

// failureOf returns an error as Python reads it.
func failureOf(err error) errs.Record { return errs.From("engine", err).Record() }

// describe returns an error for Python. That of a move that would have to ask a peer has the arguments of Ask.
func describe(err error) string {
	var u *engine.Unasked
	if !errors.As(err, &u) {
		return toJSON(failureOf(err))
	}
	return toJSON(struct {
		errs.Record
		Ask []int64 `json:"ask"`
	}{failureOf(err), []int64{int64(u.Segment), int64(u.Deadline)}})
}

func toJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf(`{"code":"INTERNAL_ERROR","message":%q}`, err.Error())
	}
	return string(text)
}

func init() {
	// Threads that come from Python hold a P while they are away in Python, and readers hold one in a system call,
	// until the runtime's monitor takes it. With only as many Ps as cores a call can find none free: 4 KiB from Python
	// took 29 µs on two cores with two Ps, 22 with four.
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()+2))
}
