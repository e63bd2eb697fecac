// Package report prints the results of the benchmarks of this folder: rows with a figure, its target, and a verdict.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Row of a table. The documentation is generated from its JSON form.
type Row struct {
	Name    string `json:"name"`
	Figure  string `json:"measured"`
	Target  string `json:"target"`
	Reached string `json:"reached"` // yes, no, or why it cannot be said

	// Interval of 95 % around the figure that is judged, by which bench-all compares runs; nil where it has none.
	Interval *[2]float64 `json:"interval,omitempty"`
}

// Of gives the row the interval of rounds, each with its own figure.
func (r Row) Of(rounds []float64) Row {
	if len(rounds) > 1 {
		low, high := Interval(rounds)
		r.Interval = &[2]float64{low, high}
	}
	return r
}

// Judge makes a row with a verdict.
func Judge(name, figure, target string, reached bool) Row {
	r := Row{Name: name, Figure: figure, Target: target, Reached: "no"}
	if reached {
		r.Reached = "yes"
	}
	return r
}

// Beside makes a row without a target, for comparison.
func Beside(name, figure string) Row { return Row{Name: name, Figure: figure} }

// Table holds the rows of one run of a benchmark.
type Table struct {
	Command string `json:"command"` // that repeats it
	Date    string `json:"date"`
	Machine string `json:"machine"` // and how often it was measured
	Rows    []Row  `json:"rows"`
}

// Show prints the rows of a run of `make target` as columns, and writes the table as JSON to path if that is not "".
func Show(w io.Writer, target, machine, path string, rows []Row) error {
	const format = "%-66s  %-44s  %-32s  %s\n"
	fmt.Fprintf(w, "%s\n\n"+format, machine, "row", "measured", "target", "reached")
	for _, r := range rows {
		fmt.Fprintf(w, format, r.Name, r.Figure, r.Target, r.Reached)
	}
	if path == "" {
		return nil
	}
	command := fmt.Sprintf("make %s ARGS=%q", target, strings.Join(os.Args[1:], " "))
	table := Table{command, time.Now().UTC().Format(time.DateOnly), machine, rows}
	text, err := json.MarshalIndent(table, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Machine describes the measuring machine in a few words.
func Machine() string {
	var kernel unix.Utsname
	_ = unix.Uname(&kernel) // cannot fail with a good pointer
	return fmt.Sprintf("%d cores, Linux %s, %s", runtime.NumCPU(), unix.ByteSliceToString(kernel.Release[:]),
		runtime.Version())
}

// Progress prints a line for a waiting reader; it is no part of the table.
func Progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Milli prints a duration in ms, or in s where that is easier to read.
func Milli(d time.Duration) string {
	if d >= time.Second {
		return Short(d)
	}
	return fmt.Sprintf("%.1f ms", float64(d)/1e6)
}

// Short prints a duration in µs, ms or s, whichever is easier to read.
func Short(d time.Duration) string {
	if d >= time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	if d < time.Millisecond {
		return fmt.Sprintf("%.0f µs", float64(d)/1e3)
	}
	return fmt.Sprintf("%.2f ms", float64(d)/1e6)
}

// Quantile of a list, which it sorts; 0 of an empty one.
func Quantile[T ~int64 | ~float64](list []T, q float64) (v T) {
	if len(list) == 0 {
		return v
	}
	slices.Sort(list)
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

// Median of a list, which it sorts; 0 of an empty one. Of an even number it is the mean of the two in the middle.
func Median[T ~int64 | ~float64](list []T) (v T) {
	n := len(list)
	if n == 0 {
		return v
	}
	slices.Sort(list)
	return list[(n-1)/2] + (list[n/2]-list[(n-1)/2])/2
}

// Interval is the one of 95 % around the median of a list, by the ranks of the binomial distribution. With fewer than
// six numbers it is their whole range, and less sure.
func Interval(list []float64) (low, high float64) {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	if n == 0 {
		return 0, 0
	}
	share := 1.0 // of all outcomes, that exactly k of n fall below the median
	for range n {
		share /= 2
	}
	below, k := 0.0, 0
	for ; k < n/2 && below+share <= 0.025; k++ {
		below += share
		share *= float64(n-k) / float64(k+1)
	}
	k = max(k-1, 0)
	return sorted[k], sorted[n-1-k]
}
