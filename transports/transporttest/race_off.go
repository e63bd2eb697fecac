//go:build !race

package transporttest

// RaceEnabled says that the race detector is on: it allocates and takes its time.
const RaceEnabled = false
