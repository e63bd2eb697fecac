// Command staging says how much of its slower hop a transfer through host memory reaches. It asks for each size and
// number of slots: `make bench-staging`. Time is virtual and no byte is copied, so each run gives the same figures. The
// core and package staging are the engine's own; the hops are rates and delays.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	gostaging "github.com/tent-engine/tent/gocore/staging"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
)

const (
	copyRate = 55e9 // PCIe 5.0 x16, one direction
	page     = 64 << 10
	target   = 0.9
)

var (
	wireRates  = []float64{12.5e9, 50e9} // 100 and 400 Gbit/s
	slotBytes  = []uint64{64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20}
	slotCounts = []int{2, 4, 8, 16, 32, 64}
)

// options of a run.
type options struct {
	bytes     uint64        // of each transfer
	copyDelay time.Duration // from the end of a copy until the core hears of it
	wireDelay time.Duration // the same of the wire
}

// usual are delays of a copy with its event polled by a waiter, and of a NIC's acknowledgement in one rack.
var usual = options{bytes: 1 << 30, copyDelay: 10 * time.Microsecond, wireDelay: 10 * time.Microsecond}

// efficiency is the share of the slower hop's rate that a transfer reaches, filling and draining the pipeline included.
func (o *options) efficiency(op transport.Op, wireRate float64, sizes gostaging.Sizes, pages uint64) (float64, error) {
	p, err := newPipeline(copies(copyRate, o.copyDelay), wire(wireRate, o.wireDelay), sizes)
	if err != nil {
		return 0, err
	}
	took, err := p.transfer(op, o.bytes, pages)
	if err != nil {
		return 0, fmt.Errorf("%v over %.0f GB/s by %v: %w", op, wireRate/1e9, sizes, err)
	}
	return float64(o.bytes) / min(copyRate, wireRate) / took.Seconds(), nil
}

// curve is the efficiency by the size of a slot, for one number of slots.
type curve struct {
	rate   float64
	slots  int
	shares []float64
}

// curves are those of all numbers of slots over one wire.
func (o *options) curves(rate float64) (list []curve, err error) {
	for _, n := range slotCounts {
		c := curve{rate: rate, slots: n}
		for _, bytes := range slotBytes {
			share, err := o.efficiency(transport.Write, rate, gostaging.Sizes{Slots: n, SlotBytes: bytes}, 0)
			if err != nil {
				return nil, err
			}
			c.shares = append(c.shares, share)
		}
		list = append(list, c)
	}
	return list, nil
}

// defaults are the sizes of a pool without any setting.
func defaults() (gostaging.Sizes, error) {
	c, err := config.Load(config.Options{})
	if err != nil {
		return gostaging.Sizes{}, err
	}
	return gostaging.Sizes{Slots: c.Engine.StagingSlots, SlotBytes: c.Engine.StagingSlotBytes}, nil
}

// rows are those of the pools that an engine has by default, and of all sizes.
func (o *options) rows(all []curve) ([]report.Row, error) {
	sizes, err := defaults()
	if err != nil {
		return nil, err
	}
	var rows []report.Row
	short := *o
	short.bytes = min(o.bytes, 16<<20) // filling and draining count for more
	for _, rate := range wireRates {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			for _, form := range []struct {
				words string
				page  uint64
				run   *options
			}{{"", 0, o}, {", pages of 64 KiB", page, o}, {", 16 MiB alone", 0, &short}} {
				share, err := form.run.efficiency(op, rate, sizes, form.page)
				if err != nil {
					return nil, err
				}
				name := fmt.Sprintf("wire of %s: %v, %v%s", speed(rate), op, sizes, form.words)
				rows = append(rows, report.Judge(name, percent(share), "at least 90 % of the slower hop",
					share >= target))
			}
		}
	}
	for _, c := range all {
		figure := ""
		for i, share := range c.shares {
			figure += fmt.Sprintf("%d KiB %s, ", slotBytes[i]>>10, percent(share))
		}
		rows = append(rows, report.Beside(fmt.Sprintf("wire of %s: WRITE, %d slots", speed(c.rate), c.slots),
			figure[:len(figure)-2]))
	}
	return rows, nil
}

func speed(rate float64) string    { return fmt.Sprintf("%g GB/s", rate/1e9) }
func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func run(o *options, json, plot string) error {
	var all []curve
	for _, rate := range wireRates {
		list, err := o.curves(rate)
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	rows, err := o.rows(all)
	if err != nil {
		return err
	}
	if plot != "" {
		if err := os.WriteFile(plot, []byte(picture(all)), 0o644); err != nil {
			return err
		}
	}
	about := fmt.Sprintf("virtual time: copies at %s told %v after their end, slices of the wire %v after theirs, "+
		"%d MiB each", speed(copyRate), o.copyDelay, o.wireDelay, o.bytes>>20)
	return report.Show(os.Stdout, "bench-staging", about, json, rows)
}

func main() {
	o := usual
	json := flag.String("json", "", "file for the table, as docs/performance has it")
	plot := flag.String("plot", "", "file for the picture, SVG")
	flag.Uint64Var(&o.bytes, "bytes", o.bytes, "of each transfer")
	flag.DurationVar(&o.copyDelay, "copy-delay", o.copyDelay, "from the end of a copy until the core hears of it")
	flag.DurationVar(&o.wireDelay, "wire-delay", o.wireDelay, "the same of the wire")
	flag.Parse()
	if err := run(&o, *json, *plot); err != nil {
		fmt.Fprintln(os.Stderr, "staging:", err)
		os.Exit(1)
	}
}
