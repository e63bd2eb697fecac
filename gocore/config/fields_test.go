package config

import (
	"reflect"
	"testing"
)

// counted has a default that each call computes anew, as on a machine that loses processors.
type counted struct {
	Fixed int `key:"fixed" takes:"1..9" default:"3" help:"A number."`
	Last  int `key:"last" takes:"1..9" default:"= one more each time" help:"A number."`
}

var computations int

func (c *counted) Compute() {
	computations++
	c.Last = computations
}

func TestFieldsAreKeptAndTheirComputedDefaultsAreNot(t *testing.T) {
	of := reflect.TypeFor[counted]()
	first, second := fieldsOf(of, "transports/a"), fieldsOf(of, "transports/a")
	for i, want := range []any{int64(computations - 1), int64(computations)} {
		list := [][]field{first, second}[i]
		if len(list) != 2 || list[0].Default != any(int64(3)) || list[1].Default != want {
			t.Fatalf("call %d: %+v, want defaults 3 and %v", i, list, want)
		}
	}
	if other := fieldsOf(of, "transports/b"); other[0].Key != "transports/b/fixed" {
		t.Errorf("another branch has key %q", other[0].Key)
	}
}

func TestAListOfFieldsIsTheCallers(t *testing.T) {
	of := reflect.TypeFor[counted]()
	fieldsOf(of, "transports/a")[0].Key = "changed"
	if key := fieldsOf(of, "transports/a")[0].Key; key != "transports/a/fixed" {
		t.Errorf("the next caller gets %q", key)
	}
}

func BenchmarkNewConfig(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		newConfig(Options{})
	}
}
