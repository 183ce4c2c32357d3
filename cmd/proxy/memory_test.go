package main

import "testing"

func TestSpareMemory(t *testing.T) {
	const mb = 1 << 20
	tests := map[string]struct {
		last, now memory
		want      bool
	}{
		"little to give":        {memory{}, memory{free: mb, used: mb}, false},
		"much lies unused":      {memory{allocated: 900 * mb}, memory{allocated: 900 * mb, free: 40 * mb, used: 100 * mb}, true},
		"but is being used":     {memory{allocated: 900 * mb}, memory{allocated: 990 * mb, free: 40 * mb, used: 100 * mb}, false},
		"little of what it has": {memory{}, memory{free: 40 * mb, used: 900 * mb}, false},
	}
	for name, tt := range tests {
		if got := tt.now.spare(tt.last); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if m := readMemory(); m.allocated == 0 || m.used == 0 {
		t.Errorf("the runtime does not know of %+v", m)
	}
}
