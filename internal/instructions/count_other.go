//go:build !(linux && amd64)

package instructions

// Main does nothing where instructions are not counted.
func Main(map[string]func() (code func())) {}

// Count is not available here.
func Count(string) (int, error) { return 0, ErrUnavailable }
