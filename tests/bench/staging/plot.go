package main

import (
	"fmt"
	"math"
	"strings"
)

// The picture: a panel a wire, the size of a slot from left to right, the share of the slower hop from bottom to top.
const (
	panel, height = 380, 320
	left, right   = 50, 80
	top, bottom   = 30, 40
)

var colours = []string{"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e", "#34495e"}

// picture draws the curves as SVG.
func picture(all []curve) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" `+
		`font-size="12">`+"\n"+`<rect width="100%%" height="100%%" fill="white"/>`+"\n", panel*len(wireRates), height)
	for i, rate := range wireRates {
		fmt.Fprintf(&b, `<g transform="translate(%d,0)"><text x="%d" y="18">share of the slower hop, wire of %s</text>`+"\n",
			i*panel, left, speed(rate))
		axes(&b)
		for j, slots := range slotCounts {
			for _, c := range all {
				if c.rate == rate && c.slots == slots {
					c.draw(&b, j)
				}
			}
		}
		b.WriteString("</g>\n")
	}
	return b.String() + "</svg>\n"
}

func across(bytes uint64) float64 {
	first, last := math.Log2(float64(slotBytes[0])), math.Log2(float64(slotBytes[len(slotBytes)-1]))
	return left + (math.Log2(float64(bytes))-first)/(last-first)*(panel-left-right)
}

func up(share float64) float64 { return height - bottom - min(share, 1)*(height-top-bottom) }

func axes(b *strings.Builder) {
	for _, share := range []float64{0, 0.25, 0.5, 0.75, target, 1} {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.0f" y2="%.0f" stroke="#ddd"/><text x="%d" y="%.0f" `+
			`text-anchor="end">%.0f %%</text>`+"\n", left, panel-right, up(share), up(share), left-6, up(share)+4, 100*share)
	}
	for _, bytes := range slotBytes {
		fmt.Fprintf(b, `<text x="%.0f" y="%d" text-anchor="middle">%d</text>`+"\n", across(bytes), height-bottom+18,
			bytes>>10)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d">KiB of a slot</text>`+"\n", left, height-6)
}

func (c *curve) draw(b *strings.Builder, index int) {
	var line []string
	for i, share := range c.shares {
		line = append(line, fmt.Sprintf("%.0f,%.0f", across(slotBytes[i]), up(share)))
	}
	colour := colours[index%len(colours)]
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%d" y="%d" fill="%s">%d slots`+
		`</text>`+"\n", strings.Join(line, " "), colour, panel-right+8, top+60+18*index, colour, c.slots)
}
