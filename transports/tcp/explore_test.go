package tcp

import (
	"fmt"
	"slices"
	"strings"
)

// explorer searches all states that a few threads can reach, in breadth (explicit-state model checking, as in SPIN). A
// step is atomic: one access to shared state. States are comparable values, and one that was met before is not searched
// again.
type explorer struct {
	code   []instruction
	labels map[string]uint8
	worlds []world
	from   []int32  // the world before, by index
	by     []uint16 // the thread and the instruction that led here
	seen   map[world]struct{}
}

// instruction is one step of a thread: it returns false, and changes nothing, while the thread has to wait. A local one
// touches nothing shared and is carried out with the step before.
type instruction struct {
	name  string
	local bool
	step  func(w *world, t *thread) bool
	idle  func(w *world, t *thread) bool // may happen instead, and nobody may rely on it
	jump  string                         // a thread may also go on there
}

// thread is a program counter with a short stack, and local variables.
type thread struct {
	pc, depth uint8
	stack     [5]uint8
	events    uint8 // of the socket
	got       uint8 // answers
	there, ok bool  // the lane is in the list; the result of the last look
	sole      bool  // epoll reported EPOLLOUT and nothing else
	sleeps    bool  // on the lane
}

func newExplorer() *explorer { return &explorer{labels: map[string]uint8{}} }

func (x *explorer) label(name string) { x.labels[name] = uint8(len(x.code)) }

func (x *explorer) add(i instruction) { x.code = append(x.code, i) }

// await adds a step that is possible when f returns true.
func (x *explorer) await(name string, f func(w *world, t *thread) bool) {
	x.add(instruction{name: name, step: func(w *world, t *thread) bool {
		if !f(w, t) {
			return false
		}
		t.pc++
		return true
	}})
}

// sleep is await for a step that may also happen at any time without f.
func (x *explorer) sleep(name string, f func(w *world, t *thread) bool) {
	x.await(name, f)
	x.code[len(x.code)-1].idle = func(_ *world, t *thread) bool { t.pc++; return true }
}

// timer adds a step that may happen while f is true, and on which nobody may rely before all others have stopped.
func (x *explorer) timer(name string, f func(w *world) bool) {
	x.add(instruction{name: name, step: func(*world, *thread) bool { return false },
		idle: func(w *world, t *thread) bool {
			if !f(w) {
				return false
			}
			t.pc++
			return true
		}})
}

// do adds a step.
func (x *explorer) do(name string, f func(w *world, t *thread)) {
	x.await(name, func(w *world, t *thread) bool { f(w, t); return true })
}

// when adds a step that goes to a label if f is true.
func (x *explorer) when(name string, f func(w *world, t *thread) bool, to string) {
	x.add(instruction{name: name, step: func(w *world, t *thread) bool {
		if f(w, t) {
			t.pc = x.labels[to]
		} else {
			t.pc++
		}
		return true
	}})
}

// unless goes to a label if a variable of the thread is false. It is false afterwards.
func (x *explorer) unless(variable func(t *thread) *bool, to string) {
	x.when("unless", func(_ *world, t *thread) bool {
		v := variable(t)
		was := *v
		*v = false
		return !was
	}, to)
	x.code[len(x.code)-1].local = true
}

// maybe goes on at a label or behind itself.
func (x *explorer) maybe(to string) {
	x.add(instruction{name: "maybe", local: true, jump: to, step: func(_ *world, t *thread) bool {
		t.pc++
		return true
	}})
}

func (x *explorer) goTo(to string) {
	x.when("go", func(*world, *thread) bool { return true }, to)
	x.code[len(x.code)-1].local = true
}

func (x *explorer) call(to string) {
	x.add(instruction{name: "call", local: true, step: func(_ *world, t *thread) bool {
		t.stack[t.depth] = t.pc + 1
		t.depth++
		t.pc = x.labels[to]
		return true
	}})
}

func (x *explorer) ret() {
	x.add(instruction{name: "return", local: true, step: func(_ *world, t *thread) bool {
		t.depth--
		t.pc, t.stack[t.depth] = t.stack[t.depth], 0
		return true
	}})
}

// stop ends a thread.
func (x *explorer) stop() { x.await("stop", func(*world, *thread) bool { return false }) }

// search visits all worlds that can be reached from threads that begin at these labels. It returns the trace to the
// first in which a law is broken, "" if there is none: stuck is asked where nobody has a step, asleep where nobody has
// one but those that may sleep on.
func (x *explorer) search(first world, begin []string, asleep, stuck func(*world) string) string {
	for i, name := range begin {
		first.threads[i].pc = x.labels[name]
	}
	x.seen = map[world]struct{}{}
	x.enter(first, 0, -1, 0)
	for at := 0; at < len(x.worlds); at++ {
		w := x.worlds[at]
		active, dozing := false, false
		for i := range begin {
			in := &x.code[w.threads[i].pc]
			active = x.visit(at, i, in.step) || active
			dozing = in.idle != nil && x.visit(at, i, in.idle) || dozing
		}
		if active {
			continue
		}
		broken := asleep(&w)
		if broken == "" && !dozing {
			broken = stuck(&w)
		}
		if broken != "" {
			return broken + "\n" + x.trace(at)
		}
	}
	return ""
}

// visit carries out a step of thread i. It reports false if the thread waits.
func (x *explorer) visit(at, i int, step func(*world, *thread) bool) bool {
	w := x.worlds[at]
	pc := w.threads[i].pc
	if !step(&w, &w.threads[i]) {
		return false
	}
	x.enter(w, i, int32(at), uint16(i)<<8|uint16(pc))
	return true
}

// enter notes a world after the local steps of thread i, on each of the ways that it may take.
func (x *explorer) enter(w world, i int, from int32, by uint16) {
	t := &w.threads[i]
	for x.code[t.pc].local {
		if to := x.code[t.pc].jump; to != "" {
			other := w
			other.threads[i].pc = x.labels[to]
			x.enter(other, i, from, by)
		}
		x.code[t.pc].step(&w, t)
	}
	if _, known := x.seen[w]; known {
		return
	}
	x.seen[w] = struct{}{}
	x.worlds = append(x.worlds, w)
	x.from = append(x.from, from)
	x.by = append(x.by, by)
}

func (x *explorer) trace(at int) string {
	var lines []string
	for ; x.from[at] >= 0; at = int(x.from[at]) {
		lines = append(lines, fmt.Sprintf("thread %d: %s", x.by[at]>>8, x.code[x.by[at]&0xff].name))
	}
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}
