package main

import (
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/transports/all"
)

// limit bounds every wait.
const limit = time.Minute

// open starts an engine that reaches peers over TCP alone.
func open(settings map[string]any) (*engine.Engine, error) {
	given := map[string]any{"transports/shm/enable": false}
	for key, value := range settings {
		given[key] = value
	}
	c, err := config.Load(config.Options{Transports: all.Transports()}, given)
	if err != nil {
		return nil, err
	}
	return engine.Open(context.Background(), engine.Options{Config: c, Transports: engine.Plugs(all.Factories()...)})
}

// steps returns first, its powers of ten times, and last.
func steps(first, last int) (list []int) {
	for n := first; n < last; n *= 10 {
		list = append(list, n)
	}
	return append(list, last)
}

// point is a measured figure of a curve: a cost beside n others, in times of the first cost.
type point struct {
	n     int
	times float64
}

// note adds a point to a curve.
func (o *options) note(curve string, n int, times float64) {
	for i := range o.curves {
		if o.curves[i].name == curve {
			o.curves[i].points = append(o.curves[i].points, point{n, times})
			return
		}
	}
	o.curves = append(o.curves, plotted{curve, []point{{n, times}}})
}

// plotted is a curve of the picture.
type plotted struct {
	name   string
	points []point
}
