//go:build race

package hazard

const raceEnabled = true
