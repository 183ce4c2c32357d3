//go:build !linux

package fleet

func awaitStopped(*run) error { return nil }
