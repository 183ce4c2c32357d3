//go:build !race

package backend_test

const raceDetector = false
