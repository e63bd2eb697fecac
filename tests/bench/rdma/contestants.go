package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// measured is a turn: its bytes, its time, and the processor time of the side's processes. The kernel's own threads,
// which do the work of Soft-RoCE, are not in the latter.
type measured struct {
	bytes     float64
	took, cpu time.Duration
}

func (m measured) rate() float64 { return m.bytes / m.took.Seconds() }
func (m measured) cost() float64 { return m.cpu.Seconds() / m.bytes * 1e9 }

// with adds another turn.
func (m measured) with(other measured) measured {
	return measured{m.bytes + other.bytes, m.took + other.took, m.cpu + other.cpu}
}

// costs are the turns of each side together.
type costs struct{ ours, theirs measured }

func (c *costs) ratio() float64 { return c.ours.cost() / c.theirs.cost() }

func (c *costs) figure() string {
	return fmt.Sprintf("%.2f: %.2f s/GB beside %.2f s/GB", c.ratio(), c.ours.cost(), c.theirs.cost())
}

// contestant moves bytes, one transfer after the other.
type contestant interface {
	measure(op transport.Op, bytes uint64, count int) (measured, error)
}

// Both sides have as many queue pairs and work requests in flight.
const (
	lanes = 4
	block = 64 << 10
	chain = 16
	depth = 4 // chains of a queue pair
	arena = 64 << 20

	// The C program ends at the first error, and a guest that waits for its host's processor is no broken rail. A
	// shorter limit sends READs again that are only late.
	patient, retries = 18, 6
	usual            = 14 // as tent has it, where faults are to be found
)

// cpuOf is the processor time of a process, by the clock id of clock_getcpuclockid(3).
func cpuOf(pid int) (time.Duration, error) {
	var at unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|2), &at)
	return time.Duration(at.Nano()), err
}

// timed adds the processor time of processes to a turn.
func timed(pids []int, turn func() (time.Duration, error)) (m measured, err error) {
	sum := func() (total time.Duration) {
		for _, pid := range pids {
			used, failed := cpuOf(pid)
			total, err = total+used, errors.Join(err, failed)
		}
		return total
	}
	before := sum()
	m.took, err = turn()
	m.cpu = sum() - before
	return m, err
}

// program is a plain program in C that speaks in lines.
type program struct {
	command *exec.Cmd
	input   io.WriteCloser
	lines   *bufio.Scanner
}

// launch starts a program over pairs of devices, with numbers behind them.
func launch(path string, pairs []pair, numbers ...int) (*program, error) {
	names := make([]string, len(pairs))
	for i, p := range pairs {
		names[i] = p.near + ":" + p.far
	}
	args := []string{strings.Join(names, ",")}
	for _, n := range numbers {
		args = append(args, strconv.Itoa(n))
	}
	c := &program{command: exec.Command(path, args...)}
	c.command.Stderr = os.Stderr
	input, err := c.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.input, c.lines = input, bufio.NewScanner(output)
	c.lines.Buffer(nil, 1<<22)
	return c, c.command.Start()
}

// startProgram starts crdma, and looks at bytes that it has moved.
func startProgram(o *options, pairs []pair) (*program, error) {
	c, err := launch(o.crdma, pairs, lanes, chain, depth, block, arena, patient, retries)
	if err != nil {
		return nil, err
	}
	_, err = c.answer("ready")
	if err == nil {
		err = c.check(transport.Write, len(pairs))
	}
	if err == nil {
		err = c.check(transport.Read, len(pairs))
	}
	if err != nil {
		err = errors.Join(err, c.close())
	}
	return c, err
}

// answer reads the next line, which begins with a word.
func (c *program) answer(word string) ([]string, error) {
	if !c.lines.Scan() {
		return nil, fmt.Errorf("the C program has ended: %w", c.lines.Err())
	}
	fields := strings.Fields(c.lines.Text())
	if len(fields) == 0 || fields[0] != word {
		return nil, fmt.Errorf("the C program said %q instead of %q", c.lines.Text(), word)
	}
	return fields[1:], nil
}

// check moves fresh bytes and looks at each.
func (c *program) check(op transport.Op, rails int) error {
	if _, err := fmt.Fprintln(c.input, "check", verb(op), arena, 1, rails); err != nil {
		return err
	}
	_, err := c.answer("ok")
	return err
}

func verb(op transport.Op) string {
	if op == transport.Read {
		return "read"
	}
	return "write"
}

func (c *program) measure(op transport.Op, bytes uint64, count int) (measured, error) {
	m, err := timed([]int{c.command.Process.Pid}, func() (total time.Duration, err error) {
		rails := 1 + strings.Count(c.command.Args[1], ",")
		if _, err := fmt.Fprintln(c.input, verb(op), bytes, 1, count, rails); err != nil {
			return 0, err
		}
		list, err := c.answer("ns")
		for _, text := range list {
			ns, bad := strconv.ParseInt(text, 10, 64)
			total, err = total+time.Duration(ns), errors.Join(err, bad)
		}
		return total, err
	})
	m.bytes = float64(bytes) * float64(count)
	return m, err
}

func (c *program) close() error {
	_ = c.input.Close() // which ends it
	return c.command.Wait()
}

// tent is an engine at both ends, in two processes.
type tent struct{ near, far *forked.Child }

func startTent(pairs []pair, timeout int) (t *tent, err error) {
	near, far := make([]string, len(pairs)), make([]string, len(pairs))
	for i, p := range pairs {
		near[i], far[i] = p.near, p.far
	}
	t = &tent{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	var address string
	if t.far, err = open(far, timeout, &address); err != nil {
		return t, err
	}
	var own string
	if t.near, err = open(near, timeout, &own); err != nil {
		return t, err
	}
	if err = t.near.Call("Load.Connect", address, &forked.Nothing{}); err != nil {
		return t, err
	}
	for seed, op := range []transport.Op{transport.Write, transport.Read} {
		if err = t.check(op, uint64(2*seed)); err != nil {
			return t, err
		}
	}
	return t, nil
}

func open(devices []string, timeout int, address *string) (*forked.Child, error) {
	c, err := forked.Start()
	if err != nil {
		return nil, err
	}
	list, _ := json.Marshal(devices) // strings cannot fail
	settings := map[string]string{"transports/shm/enable": "false", "transports/tcp/enable": "false",
		"transports/rdma/devices": string(list), "transports/rdma/num_lanes": strconv.Itoa(lanes),
		"transports/rdma/endpoint/send_timeout":     strconv.Itoa(timeout),
		"transports/rdma/endpoint/send_retry_count": strconv.Itoa(retries)}
	return c, c.Call("Load.Open", netbed.OpenArgs{Settings: settings, Bytes: arena}, address)
}

// check moves fresh bytes and looks at each.
func (t *tent) check(op transport.Op, seed uint64) error {
	from, to := t.near, t.far
	if op == transport.Read {
		from, to = to, from
	}
	if err := errors.Join(from.Call("Load.Fill", seed, &forked.Nothing{}),
		to.Call("Load.Fill", seed+1, &forked.Nothing{})); err != nil {
		return err
	}
	if _, err := t.measure(op, arena, 1); err != nil {
		return err
	}
	return to.Call("Load.Check", seed, &forked.Nothing{})
}

func (t *tent) measure(op transport.Op, bytes uint64, count int) (measured, error) {
	m, err := timed([]int{t.near.Pid(), t.far.Pid()}, func() (total time.Duration, err error) {
		var took []time.Duration
		err = t.near.Call("Load.Ping", netbed.PingArgs{Op: op, Bytes: bytes, Count: count}, &took)
		for _, d := range took {
			total += d
		}
		return total, err
	})
	m.bytes = float64(bytes) * float64(count)
	return m, err
}

func (t *tent) close() (err error) {
	for _, c := range []*forked.Child{t.near, t.far} {
		if c == nil {
			continue
		}
		var held []string
		err = errors.Join(err, c.Call("Load.Close", forked.Nothing{}, &held), c.Close())
		if len(held) > 0 {
			err = errors.Join(err, fmt.Errorf("an engine has kept %q", held))
		}
	}
	return err
}
