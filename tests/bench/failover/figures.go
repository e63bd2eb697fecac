package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/tent-engine/tent/tests/bench/report"
)

// figures are the measurements, one list for each name. A file keeps them from one call of the program to the next, so
// that a long series can be measured in parts and is judged as a whole.
type figures map[string][]float64

// addTime adds a duration, in ns.
func (f figures) addTime(name string, d time.Duration) { f.add(name, float64(d)) }

func (f figures) add(name string, v float64) { f[name] = append(f[name], v) }

// quantile of a list; 0 of one that is empty.
func (f figures) quantile(name string, q float64) float64 {
	return report.Quantile(slices.Clone(f[name]), q)
}

func (f figures) median(name string) float64 { return report.Median(slices.Clone(f[name])) }

func (f figures) sum(name string) (sum float64) {
	for _, v := range f[name] {
		sum += v
	}
	return sum
}

// spread is a list of times as a cell of the table.
func (f figures) spread(name string) string {
	return fmt.Sprintf("%s median, %s p99", milli(f.median(name)), milli(f.quantile(name, 0.99)))
}

// two is a row with a median and a 99th percentile, in ms.
func (f figures) two(row, name string, median, p99 float64) report.Row {
	return report.Judge(row, f.spread(name), fmt.Sprintf("%g ms median, %g ms p99", median, p99),
		len(f[name]) > 0 && f.median(name) <= median*1e6 && f.quantile(name, 0.99) <= p99*1e6).Of(f[name])
}

// loadFigures reads a file that save has written; there are none yet if it does not exist.
func loadFigures(file string) (figures, error) {
	f := figures{}
	if file == "" {
		return f, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	} else if err != nil {
		return nil, err
	}
	return f, json.Unmarshal(text, &f)
}

func (f figures) save(file string) error {
	if file == "" {
		return nil
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func milli(ns float64) string { return report.Milli(time.Duration(ns)) }
