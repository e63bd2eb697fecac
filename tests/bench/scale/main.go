// Command scale measures how the costs of an engine grow with its idle links, regions and requests. `make bench-scale
// ARGS="-only regions"`. Peers are engines of one other process, so two processes meet.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
)

// options of a run of the benchmark.
type options struct {
	peers, regions, pending int // the most of each
	rounds                  int
	only                    string
	seed                    uint64
	json, plot              string // files for the table and the picture, "" for none

	curves []plotted
}

// part is a group of rows that can be measured alone.
type part struct {
	name string // words by which -only chooses
	rows func(*options) ([]report.Row, error)
}

var parts = []part{{"regions", regions}, {"pending", pending}, {"links", links}, {"opens", opens}}

func main() {
	report.UseProcessors()
	if forked.RunChild(new(Crowd)) {
		return
	}
	var o options
	flag.IntVar(&o.peers, "peers", 1000, "the most peers")
	flag.IntVar(&o.regions, "regions", 100_000, "the most regions")
	flag.IntVar(&o.pending, "pending", 1<<20, "the most pending requests")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each comparison")
	flag.StringVar(&o.only, "only", "", "parts whose names hold this text; an unknown one lists them")
	flag.Uint64Var(&o.seed, "seed", 1, "of the order in which things are made")
	flag.StringVar(&o.json, "json", "", "file for the table, as docs/performance has it")
	flag.StringVar(&o.plot, "plot", "", "file for the picture, SVG")
	flag.Parse()
	if err := measure(&o); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func measure(o *options) error {
	var table []report.Row
	known := ""
	var failed error
	steal := &report.Steal{}
	steal.Share()
	for _, p := range parts {
		known += "\n  " + p.name
		if !strings.Contains(p.name, o.only) {
			continue
		}
		report.Progress("%s", p.name)
		rows, err := p.rows(o)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.name, err)) // the others are still worth their rows
		}
		for _, r := range rows {
			report.Progress("  %s: %s", r.Name, r.Figure)
		}
		table = append(table, rows...)
	}
	if len(table) == 0 && failed == nil {
		return fmt.Errorf("-only %s chooses none of%s", o.only, known)
	}
	machine := fmt.Sprintf("%s, %d rounds, %v", report.Machine(), o.rounds, steal)
	if err := o.draw(); err != nil {
		return err
	}
	return errors.Join(failed, report.Show(os.Stdout, "bench-scale", machine, o.json, table))
}
