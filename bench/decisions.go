package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
)

var (
	benchmarkLine = regexp.MustCompile(`(?m)^Benchmark\w+/(\S+?)-\d+\s+\d+\s+([\d.]+) ns/op.*?(\d+) allocs/op`)
	allocsLine    = regexp.MustCompile(`find: (\d+) allocations`)
)

// decisions takes what is measured within the proxy's own tests: the allocations of a targeted find and the time of a routing decision.
func (b *bench) decisions(ctx context.Context) error {
	if b.wants("targeted find: allocations") {
		out, err := exec.CommandContext(ctx, "go", "test", "./router", "-count=1", "-run", "^TestHotPathAllocates$", "-v").CombinedOutput()
		m := allocsLine.FindSubmatch(out)
		if m == nil {
			return fmt.Errorf("the test of allocations: %w: %s", err, out)
		}
		n, _ := strconv.ParseFloat(string(m[1]), 64)
		b.value("targeted find: allocations", n, 2, false, "")
	}
	if !b.wants("routing decision: ns") {
		return nil
	}
	out, err := exec.CommandContext(ctx, "go", "test", "./router", "-run", "^$", "-bench", "^BenchmarkDecision$", "-benchtime", "300ms", "-count", strconv.Itoa(b.rounds)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("the benchmark of decisions: %w: %s", err, out)
	}
	least := map[string]float64{}
	var names []string
	for _, m := range benchmarkLine.FindAllSubmatch(out, -1) {
		name := string(m[1])
		ns, _ := strconv.ParseFloat(string(m[2]), 64)
		if old, seen := least[name]; !seen || ns < old {
			if !seen {
				names = append(names, name)
			}
			least[name] = ns
		}
	}
	for _, name := range names {
		b.value("routing decision: ns, "+name, least[name], 500, false, "")
	}
	return nil
}
