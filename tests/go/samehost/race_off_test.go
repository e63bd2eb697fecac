//go:build !race

package samehost

const raceDetector = false
