package router

import "testing"

// Commands come from many tables; a name in two of them would end the proxy at its start.
func TestNoCommandTwice(t *testing.T) {
	defer func() {
		if p := recover(); p != nil {
			t.Fatal(p)
		}
	}()
	joinTables(&Router{})
}
