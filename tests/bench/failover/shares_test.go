package main

import (
	"strings"
	"testing"
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
