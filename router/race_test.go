//go:build race

package router

// raceDetector says that pools drop part of what they are given, so that allocations cannot be counted.
const raceDetector = true
