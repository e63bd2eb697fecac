package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/tent-engine/tent/gocore/clock"
)

// A share of a sum that rails cannot exceed says nothing about tent: such a table once said "122.8 %, yes".
func TestAShareBeyondTheSumOfTheRailsIsNoSuccess(t *testing.T) {
	for _, test := range []struct {
		name        string
		ideal, have []float64
		figure      string
		reached     string
	}{
		{"good", []float64{350, 350}, []float64{349, 347}, "99.", "yes"},
		{"low", []float64{350, 350, 350}, []float64{300, 300, 350}, "85.7 %", "no"},
		{"slower alone", []float64{285}, []float64{350}, "122.8 %", "not said"},
		// the medians of both lists would give 100 %, and no round did
		{"ratios are of one round", []float64{100, 200, 400}, []float64{80, 300, 200}, "80.0 %", "no"},
	} {
		t.Run(test.name, func(t *testing.T) {
			row := togetherRow(figures{"rails" + ideal: test.ideal, "rails" + have: test.have}, "rails", 0.98)
			if !strings.HasPrefix(row.Figure, test.figure) || !strings.HasPrefix(row.Reached, test.reached) {
				t.Errorf("%v of %v: %q, %q", test.have, test.ideal, row.Figure, row.Reached)
			}
		})
	}
}

// A rail that a busy machine slows while it is alone made the sum of the rails too small, and all together "122 %".
func TestARoundWithARailThatIsSlowAloneIsMadeAgain(t *testing.T) {
	const rate = 50_000_000
	rounds := []map[uint64]float64{
		{rate: 0.40 * rate, 2 * rate: 0.95 * 2 * rate},
		{rate: 0.95 * rate, 2 * rate: 0.52 * 2 * rate},
		{rate: 0.95 * rate, 2 * rate: 0.95 * 2 * rate},
	}
	f, n := figures{}, 0
	err := undisturbed(options{steal: 1}, f, func() error { n++; return slowAlone(rounds[n-1]) })
	if err != nil || n != len(rounds) || f.sum(kept) != 1 || f.sum(disturbed) != 2 {
		t.Errorf("%d rounds, %v kept, %v again: %v", n, f.sum(kept), f.sum(disturbed), err)
	}
	err = undisturbed(options{steal: 1}, f, func() error { return slowAlone(rounds[0]) })
	if !errors.Is(err, errDisturbed) {
		t.Errorf("a machine that is busy for good: %v", err)
	}
}

// The engine has a socket of its own for the kernel's news, so its event may come before the benchmark's. Such a run
// counted the next event of the rail, half a second later.
func TestAnEventBeforeTheBenchmarksOwnNewsIsTheFirst(t *testing.T) {
	const began, heard = 1_000_000_000, 1_000_900_000
	trace := Trace{Begin: began - 1, End: began + 1_000_000_000, News: []clock.Time{heard}, Events: []Happened{
		{At: heard - 100_000, Kind: "rail_down"}, {At: began + 540_000_000, Kind: "rail_down"}}}
	k := kind{name: linkDown}
	f := figures{}
	k.enter(options{}, f, &sight{trace: &trace, at: faultTimes{began: began, mended: began + 400_000_000}}, &trace)
	if got := f[linkDown+noticed]; len(got) != 1 || got[0] != 0 {
		t.Errorf("noticed after %v ns, the engine was first", got)
	}
}
