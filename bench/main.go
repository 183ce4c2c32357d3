// Command bench measures the proxy against what it is to be measured with: direct connections, HAProxy in TCP mode and, where it is installed,
// mongobetween, all in one run, in random order, before a stub server in its own process or before real servers.
//
//	go run ./bench -quick          three short rounds of everything, in under five minutes
//	go run ./bench                 five longer rounds
//	go run ./bench -only find      the measures whose name has find in it
//
// Each measure is one line: its name, its value, its target, and ok (within a tenth of the target), short, or skipped with the reason. Numbers of
// one machine mean little; the ratios within one run are what counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	quick := flag.Bool("quick", false, "three short rounds")
	only := flag.String("only", "", "run the measures whose name contains this")
	verbose := flag.Bool("v", false, "print what each target gave")
	profile := flag.String("cpuprofile", "", "write a CPU profile of the proxy under finds (with -only insert, update, retryable, insertMany, scan or sorted: under those) to this file")
	conns := flag.Int("conns", 64, "clients while -cpuprofile runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := &bench{rounds: 5, length: 2 * time.Second, only: *only, verbose: *verbose, conns: *conns}
	if *quick {
		b.rounds, b.length = 3, 700*time.Millisecond
	}
	if err := b.run(ctx, *profile); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	rounds  int
	length  time.Duration
	only    string
	verbose bool
	procs   *processes
	// proxyArgs are further arguments of the proxy, conns the clients of a profile.
	proxyArgs []string
	conns     int
}

func (b *bench) run(ctx context.Context, profile string) (err error) {
	if b.procs, err = build(ctx); err != nil {
		return err
	}
	defer b.procs.close()
	if profile != "" {
		return b.profile(ctx, profile)
	}
	for _, group := range []func(context.Context) error{b.relays, b.large, b.slow, b.idle, b.decisions, b.real} {
		if err := group(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// wants reports whether any of the measures was asked for.
func (b *bench) wants(names ...string) bool {
	for _, n := range names {
		if strings.Contains(n, b.only) {
			return true
		}
	}
	return false
}

// value prints a measure. With atLeast the value must reach the target, else it must not exceed it.
func (b *bench) value(name string, value, target float64, atLeast bool, note string) {
	if !b.wants(name) {
		return
	}
	verdict, sign := "short", "<="
	if !atLeast && value <= target*1.1 {
		verdict = "ok"
	}
	if atLeast {
		if sign = ">="; value >= target*0.9 {
			verdict = "ok"
		}
	}
	if note != "" {
		note = "  (" + note + ")"
	}
	fmt.Printf("%-46s %8.2f  %s %-6.4g %s%s\n", name, value, sign, target, verdict, note)
}

// report prints a measure without a target.
func (b *bench) report(name string, value float64, note string) {
	if b.wants(name) {
		fmt.Printf("%-46s %8.2f  reported  (%s)\n", name, value, note)
	}
}

// skip prints a measure that could not be taken. Only what is not installed may be missing.
func (b *bench) skip(name string, why error) {
	if b.wants(name) {
		fmt.Printf("%-46s %8s  skipped: %v\n", name, "-", why)
	}
}

// show prints what each target gave.
func (b *bench) show(name string, rs map[string]result) {
	if !b.verbose {
		return
	}
	for t, r := range rs {
		fmt.Printf("    %-30s %-10s %8.0f ops/s  p50 %-9s p99 %-9s cpu %.2f s/100k\n", name, t, r.rate,
			r.p50.Round(time.Microsecond), r.p99.Round(time.Microsecond), r.cpu)
	}
}

// optional takes an error that says that a program is not installed out of the way.
func optional(err error) (missing bool, other error) {
	if errors.Is(err, errNotInstalled) {
		return true, nil
	}
	return false, err
}
