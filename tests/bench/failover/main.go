// Command failover measures what a broken rail costs: two engines on two hosts of a test bed, four rails of one rate that
// the machine can carry together, and faults in the middle of the traffic. `make bench-failover ARGS="-runs 20"`.
//
// Everything is measured from outside of the engines but for their events: bytes acknowledged to the user each half
// millisecond, the life of small requests, interface counters. Faults are dated from the moment at which they were asked
// for, so what the kernel needs to install them (some milliseconds) counts against tent.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/tests/netbed"
)

// options of a run of the benchmark.
type options struct {
	runs     int
	rate     uint64 // bytes/s of one rail
	only     string
	markdown bool
	verbose  bool
	figures  string        // file that sums up several calls
	steal    time.Duration // what other guests may take of a run about faults
}

// line is a row of the table.
type line struct {
	name, figure, target string
	reached              string // yes, no, or why it cannot be said
}

func main() {
	if netbed.RunChild(new(Load), new(Plain)) {
		return
	}
	var o options
	flag.IntVar(&o.runs, "runs", 200, "runs of each kind of fault")
	megabytes := flag.Float64("rate", 100, "MB/s of one rail")
	flag.StringVar(&o.only, "only", "", "parts: faults, slow, rates, hogs, cost, mptcp; all without")
	flag.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	flag.BoolVar(&o.verbose, "verbose", false, "print what the engine said in each run, in ms from the fault on")
	flag.StringVar(&o.figures, "figures", "", "file of figures: those of earlier calls count too, and this call adds its own")
	flag.DurationVar(&o.steal, "steal", 10*time.Millisecond, "runs about faults are made again when the hypervisor took more than this from them")
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
	rows    func(options, figures) []line
}

var parts = []part{
	{"faults", faults, faultRows}, {"slow", slow, slowRows}, {"rates", rates, rateRows}, {"hogs", hogs, hogRows},
	{"cost", cost, costRows}, {"mptcp", mptcp, mptcpRows},
}

func measure(o options) error {
	f, err := loadFigures(o.figures)
	if err != nil {
		return err
	}
	var table []line
	for _, p := range parts {
		if o.only == "" || strings.Contains(o.only, p.name) {
			if err := p.measure(o, f); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", p.name, err), f.save(o.figures)) // what is there is whole runs
			}
			f.add(p.name, 1)
		}
		if len(f[p.name]) > 0 {
			table = append(table, p.rows(o, f)...)
		}
	}
	if err := f.save(o.figures); err != nil {
		return err
	}
	var kernel unix.Utsname
	_ = unix.Uname(&kernel) // cannot fail with a good pointer
	fmt.Printf("%d cores, Linux %s, %s, %d runs a fault, 4 rails of %.0f MB/s; %.0f of %.0f runs were made again, since the hypervisor took more than %v from them\n\n",
		runtime.NumCPU(), unix.ByteSliceToString(kernel.Release[:]), runtime.Version(), len(f[calmSmall]), float64(o.rate)/1e6,
		f.sum(disturbed), f.sum(disturbed)+f.sum(kept), o.steal)
	show(table, o.markdown)
	return nil
}

func show(table []line, markdown bool) {
	format := "%-66s  %-44s  %-32s  %s\n"
	if markdown {
		format = "| %s | %s | %s | %s |\n"
	}
	fmt.Printf(format, "row", "measured", "target", "reached")
	if markdown {
		fmt.Print("| --- | --- | --- | --- |\n")
	}
	for _, l := range table {
		fmt.Printf(format, l.name, l.figure, l.target, l.reached)
	}
}

// judge makes a row whose figure is reached or not.
func judge(name, figure, target string, reached bool) line {
	l := line{name, figure, target, "no"}
	if reached {
		l.reached = "yes"
	}
	return l
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
