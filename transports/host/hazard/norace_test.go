//go:build !race

package hazard

const raceEnabled = false
