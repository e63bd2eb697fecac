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
	"strings"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/tests/roce"
)

// options of a run.
type options struct {
	rounds  int
	seconds float64 // of one side's turn
	pairs   string  // DEVICE:DEVICE,... ; empty: the guest's rails
	json    string
	crdma   string
}

func main() {
	if forked.RunChild(new(netbed.Actor)) {
		return
	}
	var o options
	flag.IntVar(&o.rounds, "rounds", 11, "rounds in which both sides take turns")
	flag.Float64Var(&o.seconds, "seconds", 0.5, "of a side's turn")
	flag.StringVar(&o.pairs, "pairs", "", "devices that are cabled, NEAR:FAR,...; without, the rails of the test guest")
	flag.StringVar(&o.json, "json", "", "file for the table, as docs/performance has it")
	flag.StringVar(&o.crdma, "crdma", "build/guest/crdma", "the C program")
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
	var rows []report.Row
	for _, n := range []int{1, 2, 4} {
		if n > len(pairs) {
			continue
		}
		list, err := side(o, pairs[:n])
		if err != nil {
			return err
		}
		rows = append(rows, list...)
	}
	if o.pairs == "" && len(pairs) > 1 {
		list, err := slow(o, pairs[:2])
		if err != nil {
			return err
		}
		rows = append(rows, list...)
	}
	machine := fmt.Sprintf("%s, %s, %d rounds", report.Machine(), where, o.rounds)
	return report.Show(os.Stdout, "bench-rdma", machine, o.json, rows)
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
			rows = append(rows, rates.row(name+", rate", "≥ 0.95 of the C program", rates.median() >= 0.95),
				costs.row(name+", CPU of processes", "≤ 1.1 of the C program", costs.median() <= 1.1))
		}
	}
	return rows, nil
}

func contestants(o *options, pairs []pair) (*tent, *program, error) {
	c, err := startProgram(o, pairs)
	if err != nil {
		return nil, nil, err
	}
	t, err := startTent(pairs)
	if err != nil {
		return nil, nil, errors.Join(err, c.close())
	}
	return t, c, nil
}

// rounds lets both move the same bytes in turns. The first turn of each is not counted.
func rounds(o *options, t, c contestant, op transport.Op, bytes uint64) (rates, costs ratios, err error) {
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
		costs.add(ours.cost(), theirs.cost(), "%.2f s/GB", 1)
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
	t, err := startTent(pairs)
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
		for range o.rounds {
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
			rates.add(ours.rate(), fast.rate()+slow.rate(), "%.1f MB/s", 1e-6)
		}
		rows = append(rows, rates.row(fmt.Sprintf("%v 64 MiB, 2 rails, one at a tenth of the other's rate", op),
			"≥ 0.95 of the sum of both", rates.median() >= 0.95))
	}
	return rows, nil
}
