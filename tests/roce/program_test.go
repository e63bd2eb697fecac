package roce

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

// patience bounds each wait for a line of a program. It is a last resort: a busy machine is no failure.
const patience = 2 * time.Minute

// needGuest skips a test outside the guest, and where that has too few rails.
func needGuest(t *testing.T, rails int) {
	t.Helper()
	if os.Getenv(GuestEnv) == "" {
		t.Skip("only in the guest: make test-rdma")
	}
	require.GreaterOrEqual(t, len(Rails()), rails, "rails of the guest")
}

// queues are the settings of a program's queue pairs.
type queues struct{ pairs, chain, depth, block, arena, timeout, retries int }

// program is one of tests/bench/crdma.c and flow.c, driven by lines. For one goroutine.
type program struct {
	t       *testing.T
	command *exec.Cmd
	input   io.Writer
	lines   chan string
	seen    []string // of those that came, each one once
}

// start runs a program over some rails and ends it with the test.
func start(t *testing.T, name string, rails []Rail, q queues) *program {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../build/guest", name))
	require.NoError(t, err)
	pairs := make([]string, len(rails))
	for i, r := range rails {
		pairs[i] = r.Device(A) + ":" + r.Device(B)
	}
	args := []string{strings.Join(pairs, ",")}
	for _, n := range []int{q.pairs, q.chain, q.depth, q.block, q.arena, q.timeout, q.retries} {
		args = append(args, strconv.Itoa(n))
	}
	p := &program{t: t, command: exec.Command(path, args...), lines: make(chan string, 1024)}
	input, err := p.command.StdinPipe()
	require.NoError(t, err)
	output, err := p.command.StdoutPipe()
	require.NoError(t, err)
	p.input, p.command.Stderr = input, os.Stderr
	require.NoError(t, p.command.Start(), "make test-rdma builds it")
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() { p.end(input) })
	p.await("ready")
	return p
}

// end closes the program's input, which ends it, and waits.
func (p *program) end(input io.Closer) {
	_ = input.Close()
	timer := time.AfterFunc(patience, func() { _ = p.command.Process.Kill() })
	defer timer.Stop()
	for range p.lines { // until the program closes its output
	}
	_ = p.command.Wait() // of a program that has failed, its lines say more
}

// await returns the words of the next line that begins with these words; other lines stay for later.
func (p *program) await(words ...any) []string {
	p.t.Helper()
	return p.awaitAny(strings.TrimSuffix(fmt.Sprintln(words...), "\n"))
}

// awaitAny does so for one of several beginnings.
func (p *program) awaitAny(beginnings ...string) []string {
	p.t.Helper()
	wanted := func(line string) bool {
		return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(line+" ", b+" ") })
	}
	if i := slices.IndexFunc(p.seen, wanted); i >= 0 {
		line := p.seen[i]
		p.seen = slices.Delete(p.seen, i, i+1)
		return strings.Fields(line)
	}
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		select {
		case line, more := <-p.lines:
			require.True(p.t, more, "the program ended instead of printing %q; before: %q", beginnings, p.seen)
			if wanted(line) {
				return strings.Fields(line)
			}
			p.seen = append(p.seen, line)
		case <-limit.C:
			require.Fail(p.t, "no line in time", "%q; before: %q", beginnings, p.seen)
		}
	}
}

// tell sends a line.
func (p *program) tell(words ...any) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.input, words...)
	require.NoError(p.t, err)
}

// check moves bytes, of which the program looks at each, and at the guard bands.
func (p *program) check(op string, size, count, rails int) {
	p.t.Helper()
	p.tell("check", op, size, count, rails)
	p.ok()
}

// ok awaits the program's verdict on all bytes.
func (p *program) ok() {
	p.t.Helper()
	require.Equal(p.t, []string{"ok"}, p.awaitAny("ok", "bad", "guard"))
}

// took returns the shortest of some transfers.
func (p *program) took(op string, size, rails int) time.Duration {
	p.t.Helper()
	p.tell(op, size, 1, 5, rails)
	best := time.Duration(1 << 62)
	for _, n := range p.await("ns")[1:] {
		best = min(best, time.Duration(number(p.t, n)))
	}
	return best
}

func number(t *testing.T, word string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(word, 10, 64)
	require.NoError(t, err)
	return n
}

// moved returns the bytes of each rail so far.
func (p *program) moved() (bytes []int64) {
	p.t.Helper()
	p.tell("moved")
	for _, n := range p.await("moved")[1:] {
		bytes = append(bytes, number(p.t, n))
	}
	return bytes
}

// join connects a rail, or opens it. A device that was mended may need a moment until it has its address.
func (p *program) join(verb string, rail int) {
	p.t.Helper()
	for deadline := clock.Now().Add(patience); ; {
		p.tell(verb, rail)
		answer := p.awaitAny(fmt.Sprint("done ", rail), fmt.Sprint("refused ", rail))
		if answer[0] == "done" {
			return
		}
		require.Less(p.t, clock.Now(), deadline, "%s: %q", verb, answer)
	}
}

// goesOn waits until a rail has moved more.
func (p *program) goesOn(rail int) {
	p.t.Helper()
	before, deadline := p.moved()[rail], clock.Now().Add(patience)
	for p.moved()[rail] == before {
		require.Less(p.t, clock.Now(), deadline, "rail %d stands still", rail)
	}
}

// stands waits until a rail moves nothing more: two looks in a row see the same.
func (p *program) stands(rail int) {
	p.t.Helper()
	for before, deadline := int64(-1), clock.Now().Add(patience); ; {
		now := p.moved()[rail]
		if now == before {
			return
		}
		require.Less(p.t, clock.Now(), deadline, "rail %d goes on", rail)
		before = now
	}
}
