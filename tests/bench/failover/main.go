// Command failover measures the cost of a broken rail. It has two engines on two hosts of a test bed, four rails of one
// rate that the machine can carry together, and faults in the middle of the traffic. `make bench-failover ARGS="-runs
// 20"`.
//
// Everything is measured from outside of the engines but for their events: bytes acknowledged to the user each half
// millisecond, the life of small requests, interface counters. Faults are dated from the moment at which they were
// asked for, so the kernel's time to install them (some milliseconds) counts against tent.
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
	runs    int
	rate    uint64 // bytes/s of one rail
	only    string
	json    string // file for the table, "" for none
	verbose bool
	figures string  // file that sums up several calls
	steal   float64 // share of the time that the host of a virtual machine may take of a run about faults
}

func main() {
	if forked.RunChild(new(Load), new(Plain)) {
		return
	}
	var o options
	flag.IntVar(&o.runs, "runs", 200, "runs of each kind of fault")
	megabytes := flag.Float64("rate", 100, "MB/s of one rail")
	flag.StringVar(&o.only, "only", "", "parts: faults, whole, slow, rates, hogs, cost, mptcp; all without")
	flag.StringVar(&o.json, "json", "", "file for the table, as docs/performance has it")
	flag.BoolVar(&o.verbose, "verbose", false, "print what the engine said in each run, in ms from the fault on")
	flag.StringVar(&o.figures, "figures", "",
		"file of figures: those of earlier calls count too, and this call adds its own")
	flag.Float64Var(&o.steal, "steal", 0.01,
		"runs about faults are made again when the host of the virtual machine took more than this share of their time")
	flag.Parse()
	o.rate = uint64(*megabytes * 1e6)
	if err := measure(o); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

// part is some rows of the table: measure adds to their figures, rows judges all that there are.
type part struct {
	name    string
	measure func(options, figures) error
	rows    func(options, figures) []report.Row
}

var parts = []part{
	{"faults", faults, faultRows}, {"whole", whole, wholeRows}, {"slow", slow, slowRows},
	{"rates", rates, rateRows}, {"hogs", hogs, hogRows},
	{"cost", cost, costRows}, {"mptcp", mptcp, mptcpRows},
}

func measure(o options) error {
	f, err := loadFigures(o.figures)
	if err != nil {
		return err
	}
	var table []report.Row
	for _, p := range parts {
		if o.only == "" || strings.Contains(o.only, p.name) {
			err := p.measure(o, f)
			if f.add(p.name, 1); errors.Is(err, errDisturbed) {
				report.Progress("%s: %v: what there is must do", p.name, err)
			} else if err != nil {
				return errors.Join(fmt.Errorf("%s: %w", p.name, err), f.save(o.figures)) // it holds whole runs only
			}
		}
		if len(f[p.name]) > 0 {
			table = append(table, p.rows(o, f)...)
		}
	}
	if err := f.save(o.figures); err != nil {
		return err
	}
	machine := fmt.Sprintf("%s, %d runs a fault, 4 rails of %.0f MB/s; %.0f of %.0f runs were made again, since the "+
		"host took more than %.1f %% of their time or a rail was slow alone",
		report.Machine(), len(f[calmSmall]), float64(o.rate)/1e6, f.sum(disturbed), f.sum(disturbed)+f.sum(kept),
		100*o.steal)
	return report.Show(os.Stdout, "bench-failover", machine, o.json, table)
}

// Names of figures.
const (
	kept      = "runs that count"
	disturbed = "runs made again"
)

// patience bounds how many runs are made for one that counts.
const patience = 10

// undisturbed repeats measure until the host of this virtual machine has taken little of the time meanwhile. It also
// does when measure asks for that by errAgain. A machine that is stopped for 50 ms sees rails that are silent for
// 50 ms, which says nothing about tent.
func undisturbed(o options, f figures, measure func() error) error {
	var steal report.Steal
	for range patience {
		steal.Share()
		err := measure()
		lost := steal.Share()
		if errors.Is(err, errAgain) {
			report.Progress("%v", err)
			f.add(disturbed, 1)
			continue
		}
		if err != nil {
			return err
		}
		if lost <= o.steal {
			f.add(kept, 1)
			return nil
		}
		f.add(disturbed, 1)
		if o.verbose {
			report.Progress("the host took %.1f %% of the time: again", 100*lost)
		}
	}
	return errDisturbed
}

var (
	errDisturbed = fmt.Errorf("the machine was disturbed in %d runs in a row", patience)
	errAgain     = errors.New("the machine was busy")
)
