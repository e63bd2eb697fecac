package main

import (
	"fmt"
	"math"
	"os"
	"strings"
)

// The picture: how many are idle from left to right, the cost in times of the first from bottom to top, both as
// logarithms.
const (
	width, height = 720, 360
	left, right   = 60, 200
	top, bottom   = 20, 40
	timesMin      = 0.5
	timesMax      = 16.0
)

var colours = []string{"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e"}

// picture draws the curves as SVG.
func (o *options) picture() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" `+
		`font-size="12">`+"\n"+`<rect width="%d" height="%d" fill="white"/>`+"\n", width, height, width, height)
	most := 10.0
	for _, c := range o.curves {
		for _, p := range c.points {
			most = max(most, float64(p.n))
		}
	}
	across := func(n float64) float64 { return left + math.Log10(n)/math.Log10(most)*(width-left-right) }
	up := func(times float64) float64 {
		share := math.Log2(max(timesMin, min(timesMax, times))/timesMin) / math.Log2(timesMax/timesMin)
		return height - bottom - share*(height-top-bottom)
	}
	for n := 1.0; n <= most; n *= 10 {
		fmt.Fprintf(&b, `<line x1="%.0f" x2="%.0f" y1="%d" y2="%d" stroke="#ddd"/><text x="%.0f" y="%d" `+
			`text-anchor="middle">%.0f</text>`+"\n", across(n), across(n), top, height-bottom, across(n),
			height-bottom+18, n)
	}
	for times := timesMin; times <= timesMax; times *= 2 {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.0f" y2="%.0f" stroke="#ddd"/><text x="%d" y="%.0f" `+
			`text-anchor="end">%g</text>`+"\n", left, width-right, up(times), up(times), left-6, up(times)+4, times)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">idle beside it</text><text x="4" y="%d">times</text>`+"\n", left, height-4,
		top-6)
	for i, c := range o.curves {
		colour := colours[i%len(colours)]
		var line []string
		for _, p := range c.points {
			line = append(line, fmt.Sprintf("%.0f,%.0f", across(float64(p.n)), up(p.times)))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%d" y="%d" `+
			`fill="%s">%s</text>`+"\n", strings.Join(line, " "), colour, width-right+10, top+20*(i+1), colour, c.name)
	}
	return b.String() + "</svg>\n"
}

// draw writes the picture where one was asked for.
func (o *options) draw() error {
	if o.plot == "" {
		return nil
	}
	return os.WriteFile(o.plot, []byte(o.picture()), 0o644)
}
