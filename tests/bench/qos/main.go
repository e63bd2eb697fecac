// Command qos measures the effect of classes of priority. It sends small requests of HIGH beside floods of LOW, from
// one process and from several, over one rail of a limited rate in network namespaces (root) and over loopback. `make
// bench-qos ARGS="-rounds 5 -only beside,limited"`.
//
// Each figure is the median over rounds in which the kinds of run that are compared follow one another. Small requests
// offer a twentieth of the rail; how long they take counts from the time at which they should have begun. Every byte is
// verified at the end of each round, then overwritten and looked at again.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

// options of a run of the benchmark.
type options struct {
	rounds int
	long   time.Duration // of one kind of run in one round
	only   string
	seed   uint64
	json   string // file for the table, "" for none
}

// part is a group of rows that can be measured alone.
type part struct {
	name string // words by which -only chooses
	rows func(options) ([]report.Row, error)
}

func main() {
	report.UseProcessors()
	if forked.RunChild(new(Load), new(Plain)) {
		return
	}
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each comparison")
	flag.DurationVar(&o.long, "for", 3*time.Second, "length of each run of a round")
	flag.StringVar(&o.only, "only", "",
		"parts whose names hold all of these words, as in beside,limited,WRITE; an unknown word lists them")
	flag.Uint64Var(&o.seed, "seed", 1, "of the times of small requests")
	flag.StringVar(&o.json, "json", "", "file for the table, as docs/performance has it")
	mbits := flag.Float64("rate", 400, "Mbit/s of the limited rail")
	flag.Parse()
	if err := measure(o, parts(uint64(*mbits*1e6/8))); err != nil {
		fmt.Fprintln(os.Stderr, "qos:", err)
		os.Exit(1)
	}
}

// parts returns the measurements, in the order of the table.
func parts(rate uint64) (list []part) {
	places := []place{
		{name: fmt.Sprintf("limited to %d Mbit/s", rate*8/1e6), rate: rate, bed: true},
		{name: "ten gigabit", rate: 1_250_000_000, bed: true, fast: true},
		{name: "loopback", high: 100_000_000, fast: true},
	}
	both := []transport.Op{transport.Write, transport.Read}
	for _, p := range places {
		for _, op := range both {
			list = append(list, part{"beside " + p.name + " " +
				label(op), func(o options) ([]report.Row, error) { return beside(o, p, op) }})
		}
	}
	limited, loopback := places[0], places[2]
	for _, p := range []place{limited, loopback} {
		for _, op := range both {
			list = append(list, part{"process " + p.name + " " +
				label(op), func(o options) ([]report.Row, error) { return process(o, p, op) }})
		}
	}
	for _, p := range []place{limited, loopback} {
		list = append(list, part{"fair " + p.name, func(o options) ([]report.Row, error) { return fair(o, p) }})
	}
	return append(list, part{"cost " + loopback.name,
		func(o options) ([]report.Row, error) { return cost(o, loopback) }},
		part{"share", takePart})
}

// chosen reports whether the name of a part holds all the words.
func (o options) chosen(name string) bool {
	for word := range strings.SplitSeq(o.only, ",") {
		if !strings.Contains(name, word) {
			return false
		}
	}
	return true
}

func measure(o options, list []part) error {
	var table []report.Row
	known := ""
	steal := &report.Steal{}
	steal.Share()
	for _, p := range list {
		known += "\n  " + p.name
		if !o.chosen(p.name) {
			continue
		}
		report.Progress("%s", p.name)
		rows, err := p.rows(o)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		table = append(table, rows...)
	}
	if len(table) == 0 {
		return fmt.Errorf("-only %s chooses none of%s", o.only, known)
	}
	machine := fmt.Sprintf("%s, %d rounds of %v, %v", report.Machine(), o.rounds, o.long, steal)
	return report.Show(os.Stdout, "bench-qos", machine, o.json, table)
}
