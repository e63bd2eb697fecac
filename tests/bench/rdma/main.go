// Command rdma compares an engine's transfers over RDMA with a plain C program (tests/bench/crdma.c). That one uses as
// many queue pairs, as many requests in flight and the same blocks through verbs directly. Both take turns, in the test
// guest or on the NICs of a machine: `make bench-rdma`, `make check-rdma`.
//
// In the guest the two share one processor and a network in software. So rates say how much tent adds to the kernel's
// work, and nothing about hardware.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/roce"
)

// options of a run.
type options struct {
	rounds  int
	runs    int     // of a fault
	seconds float64 // of one side's turn
	only    string  // words of parts
	pairs   string  // DEVICE:DEVICE,... ; empty: the guest's rails
	json    string
	crdma   string
	flow    string
}

func main() {
	report.UseProcessors()
	if forked.RunChild(new(Load)) {
		return
	}
	var o options
	flag.IntVar(&o.rounds, "rounds", 11, "rounds in which both sides take turns")
	flag.IntVar(&o.runs, "runs", 100, "runs of each fault")
	flag.StringVar(&o.only, "only", "", "parts with one of these words, as in faults,slow; an unknown word lists them")
	flag.Float64Var(&o.seconds, "seconds", 0.5, "of a side's turn")
	flag.StringVar(&o.pairs, "pairs", "", "devices that are cabled, NEAR:FAR,...; without, the rails of the test guest")
	flag.StringVar(&o.json, "json", "", "file for the table, as docs/performance has it")
	flag.StringVar(&o.crdma, "crdma", "build/guest/crdma", "the C program")
	flag.StringVar(&o.flow, "flow", "build/guest/flow", "the C program that hears of faults")
	flag.Parse()
	if err := run(&o); err != nil {
		fmt.Fprintln(os.Stderr, "rdma:", err)
		os.Exit(1)
	}
}

// pair is the devices of both ends of a rail.
type pair struct{ near, far string }

func run(o *options) error {
	pairs, where, err := o.list()
	if err != nil {
		return err
	}
	parts, err := o.chosen(parts(o, pairs))
	if err != nil {
		return err
	}
	var rows []report.Row
	for _, p := range parts {
		list, err := p.rows()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		for _, r := range list {
			report.Progress("%s: %s", r.Name, r.Figure)
		}
		rows = append(rows, list...)
	}
	machine := fmt.Sprintf("%s, %s, %d rounds, %d runs of a fault", report.Machine(), where, o.rounds, o.runs)
	return report.Show(os.Stdout, "bench-rdma", machine, o.json, rows)
}

// part is a group of rows that can be measured alone.
type part struct {
	name string
	rows func() ([]report.Row, error)
}

// parts are those that the devices can have, in the order of the table. Only the guest's rails can be made slow or be
// broken.
func parts(o *options, pairs []pair) (list []part) {
	for _, n := range []int{1, 2, 4} {
		if n <= len(pairs) {
			rows := func() ([]report.Row, error) { return side(o, pairs[:n]) }
			list = append(list, part{fmt.Sprint("rails ", n), rows})
		}
	}
	if len(pairs) > 1 {
		list = append(list, part{"withdrawals", func() ([]report.Row, error) { return withdrawals(o, pairs[:2]) }})
	}
	if o.pairs != "" || len(pairs) < 2 {
		return list
	}
	list = append(list, part{"slow", func() ([]report.Row, error) { return slow(o, pairs[:2]) }},
		part{"classes", func() ([]report.Row, error) { return classes(o, pairs[:1]) }})
	for _, f := range breaks {
		list = append(list, part{"faults " + f, func() ([]report.Row, error) { return faults(o, f, pairs[:2]) }})
	}
	return list
}

// chosen are the parts that -only names, all without it.
func (o *options) chosen(all []part) (list []part, err error) {
	var names []string
	for _, p := range all {
		names = append(names, p.name)
		if o.only == "" || slices.ContainsFunc(strings.Split(o.only, ","), func(word string) bool {
			return strings.Contains(p.name, word)
		}) {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		err = fmt.Errorf("-only %s: the parts are %q", o.only, names)
	}
	return list, err
}

// list names the devices, and where they are.
func (o *options) list() (list []pair, where string, err error) {
	for _, r := range roce.Rails() {
		list = append(list, pair{r.Device(roce.A), r.Device(roce.B)})
	}
	where = "Soft-RoCE in the test guest"
	if o.pairs != "" {
		list, where = nil, "devices "+o.pairs
		for _, text := range strings.Split(o.pairs, ",") {
			near, far, both := strings.Cut(text, ":")
			if !both {
				return nil, "", fmt.Errorf("-pairs wants NEAR:FAR, not %q", text)
			}
			list = append(list, pair{near, far})
		}
	}
	if len(list) == 0 {
		err = errors.New("no rails: run `make bench-rdma`, or name devices by -pairs")
	}
	return list, where, err
}

// sizes of a transfer.
var sizes = []struct {
	bytes uint64
	name  string
}{{64 << 10, "64 KiB"}, {1 << 20, "1 MiB"}, {64 << 20, "64 MiB"}}

// side measures both programs over some rails.
func side(o *options, pairs []pair) (rows []report.Row, err error) {
	t, c, err := contestants(o, pairs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close(), c.close()) }()
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, size := range sizes {
			name := fmt.Sprintf("%v %s, %d rails", op, size.name, len(pairs))
			report.Progress("%s", name)
			rates, costs, err := rounds(o, t, c, op, size.bytes)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			rows = append(rows, rates.row(name+", rate", "≥ 0.95 of the C program", atLeast(0.95)),
				report.Judge(name+", CPU of processes", costs.figure(), "≤ 1.1 of the C program", costs.ratio() <= 1.1))
		}
	}
	return rows, nil
}

func contestants(o *options, pairs []pair) (*tent, *program, error) {
	c, err := startProgram(o, pairs)
	if err != nil {
		return nil, nil, err
	}
	t, err := startTent(pairs, patient)
	if err != nil {
		return nil, nil, errors.Join(err, c.close())
	}
	return t, c, nil
}

// rounds lets both move the same bytes in turns. The first turn of each is not counted.
func rounds(o *options, t, c contestant, op transport.Op, bytes uint64) (rates ratios, costs costs, err error) {
	first, err := c.measure(op, bytes, 1)
	if err == nil {
		_, err = t.measure(op, bytes, 1)
	}
	if err != nil {
		return rates, costs, err
	}
	count := max(1, int(o.seconds*first.rate()/float64(bytes)))
	for range o.rounds {
		theirs, err := c.measure(op, bytes, count)
		if err != nil {
			return rates, costs, err
		}
		ours, err := t.measure(op, bytes, count)
		if err != nil {
			return rates, costs, err
		}
		rates.add(ours.rate(), theirs.rate(), "%.1f MB/s", 1e-6)
		costs.ours, costs.theirs = costs.ours.with(ours), costs.theirs.with(theirs)
	}
	return rates, costs, nil
}

// Rates of the two rails of which one is slow, in bytes/s.
const (
	fastRate = 40e6
	slowRate = fastRate / 10
)

// slow compares the engine over a rail and one at a tenth of its rate with the sum of the C program over each alone.
func slow(o *options, pairs []pair) (rows []report.Row, err error) {
	for i, rate := range []uint64{fastRate, slowRate} {
		if err := roce.Rail(i).Limit(rate); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, roce.Rail(i).Heal()) }()
	}
	t, err := startTent(pairs, patient)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var alone [2]*program
	for i := range alone {
		if alone[i], err = startProgram(o, pairs[i:i+1]); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, alone[i].close()) }()
	}
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		var rates ratios
		report.Progress("%v, one rail at a tenth", op)
		for round := range o.rounds + 1 {
			fast, err := alone[0].measure(op, 64<<20, 1)
			if err != nil {
				return nil, err
			}
			slow, err := alone[1].measure(op, 8<<20, 1)
			if err != nil {
				return nil, err
			}
			ours, err := t.measure(op, 64<<20, 1)
			if err != nil {
				return nil, err
			}
			switch sum := fast.rate() + slow.rate(); {
			case round > 0:
				rates.add(ours.rate(), sum, "%.1f MB/s", 1e-6)
			case op == transport.Write:
				rows = append(rows, report.Beside("WRITE 64 MiB, the same rails, before their rates are known",
					fmt.Sprintf("%.2f of the sum of both", ours.rate()/sum)))
			}
		}
		rows = append(rows, rates.row(fmt.Sprintf("%v 64 MiB, 2 rails, one at a tenth of the other's rate", op),
			"≥ 0.95 of the sum of both", atLeast(0.95)))
	}
	return rows, nil
}
