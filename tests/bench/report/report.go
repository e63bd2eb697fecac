// Package report prints the results of the benchmarks of this folder: rows with a figure, its target, and a verdict.
package report

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Row of a table.
type Row struct {
	Name, Figure, Target string
	Reached              string // yes, no, or why it cannot be said
}

// Judge makes a row with a verdict.
func Judge(name, figure, target string, reached bool) Row {
	r := Row{name, figure, target, "no"}
	if reached {
		r.Reached = "yes"
	}
	return r
}

// Beside makes a row without a target, for comparison.
func Beside(name, figure string) Row { return Row{Name: name, Figure: figure} }

// Show prints the rows as columns, or as a table of Markdown.
func Show(w io.Writer, rows []Row, markdown bool) {
	format := "%-66s  %-44s  %-32s  %s\n"
	if markdown {
		format = "| %s | %s | %s | %s |\n"
	}
	fmt.Fprintf(w, format, "row", "measured", "target", "reached")
	if markdown {
		fmt.Fprint(w, "| --- | --- | --- | --- |\n")
	}
	for _, r := range rows {
		fmt.Fprintf(w, format, r.Name, r.Figure, r.Target, r.Reached)
	}
}

// Machine describes the measuring machine in a few words.
func Machine() string {
	var kernel unix.Utsname
	_ = unix.Uname(&kernel) // cannot fail with a good pointer
	return fmt.Sprintf("%d cores, Linux %s, %s", runtime.NumCPU(), unix.ByteSliceToString(kernel.Release[:]), runtime.Version())
}

// Progress prints a line for a waiting reader; it is no part of the table.
func Progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Milli prints a duration in ms.
func Milli(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

// Short prints a duration in µs or ms, whichever is easier to read.
func Short(d time.Duration) string {
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

// Median of a list, which it sorts; 0 of an empty one.
func Median[T ~int64 | ~float64](list []T) T { return Quantile(list, 0.5) }
