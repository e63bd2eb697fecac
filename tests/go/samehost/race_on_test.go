//go:build race

package samehost

const raceDetector = true
