package main

import (
	"strings"
	"testing"
)

func TestConflicts(t *testing.T) {
	cases := []struct {
		holders map[string][]string
		want    []string // parts of the error; none: no error
	}{
		{map[string][]string{"shop": {"a"}, "blog": {"b"}}, nil},
		{map[string][]string{"shop": {"a", "b"}}, []string{"database shop is on the backends a and b"}},
		{map[string][]string{"shop": {"a"}, "Shop": {"b"}}, []string{"Shop (on b) and shop (on a) differ in case only"}},
		{map[string][]string{"shop": {"a", "b"}, "blog": {"a", "c"}}, []string{"blog is on the backends a and c", "shop is on the backends a and b"}},
	}
	for _, c := range cases {
		err := conflicts(c.holders)
		if (err != nil) != (len(c.want) > 0) {
			t.Errorf("%v: %v", c.holders, err)
		}
		for _, want := range c.want {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q", c.holders, err, want)
			}
		}
	}
}
