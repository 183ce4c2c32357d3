// Command run compares, side by side in one run, a stub server reached directly, through HAProxy in TCP mode (where it is installed) and through the
// proxy. Samples are interleaved in random order; it prints operations a second, their ratio to direct and to HAProxy, and percentiles.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet"
)

func main() {
	seconds := flag.Float64("seconds", 2, "length of one sample")
	samples := flag.Int("samples", 5, "samples of each cell")
	flag.Parse()
	if err := run(*seconds, *samples); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// target is one way to the stub.
type target struct {
	name string
	addr string
}

func run(seconds float64, samples int) error {
	ctx := context.Background()
	defer stopAll()
	dir, err := os.MkdirTemp("", "shardway-bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, name := range []string{"bench/stub", "cmd/proxy"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, filepath.Base(name)), "./"+name).CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	stub, err := start(ctx, filepath.Join(dir, "stub"))
	if err != nil {
		return err
	}
	targets := []target{{"direct", stub}}
	if addr, err := haproxy(ctx, dir, stub); err == nil {
		targets = append(targets, target{"haproxy", addr})
	} else {
		fmt.Println("no HAProxy:", err)
	}
	proxy, stop, err := shardway(ctx, dir, stub)
	if err != nil {
		return err
	}
	defer stop()
	targets = append(targets, target{"shardway", proxy})
	for _, conns := range []int{1, 16, 64, 256} {
		if err := compare(targets, conns, seconds, samples); err != nil {
			return err
		}
	}
	return nil
}

// children are the processes of this run; none may outlive it.
var children []*exec.Cmd

// launch starts a child.
func launch(cmd *exec.Cmd) error {
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	children = append(children, cmd)
	return nil
}

// stopAll ends the children, the last one first, and waits for them.
func stopAll() {
	for _, cmd := range slices.Backward(children) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	children = nil
}

// start runs a program that prints its address as its first line.
func start(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := launch(cmd); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line), err
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

func haproxy(ctx context.Context, dir, stub string) (string, error) {
	program, err := exec.LookPath("haproxy")
	if err != nil {
		return "", err
	}
	addr, err := freePort()
	if err != nil {
		return "", err
	}
	conf := filepath.Join(dir, "haproxy.cfg")
	text := fmt.Sprintf("global\n nbthread 2\n maxconn 4000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\nlisten l\n bind %s\n server s %s\n", addr, stub)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return "", err
	}
	if err := launch(exec.CommandContext(ctx, program, "-db", "-f", conf)); err != nil {
		return "", err
	}
	return addr, reachable(addr)
}

func reachable(addr string) error {
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var c net.Conn
		if c, err = net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
	}
	return err
}

// shardway runs the proxy over a real server, which holds the catalog, and the stub, which holds the database bench.
func shardway(ctx context.Context, dir, stub string) (string, func(), error) {
	fl, err := fleet.Start(ctx, 1, fleet.Options{Dir: filepath.Join(dir, "catalog")})
	if err != nil {
		return "", nil, err
	}
	addr, err := freePort()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "proxy"), "serve", "--listen", addr, "--catalog", "a",
		"--backend", "a="+fl.Servers[0].URI(), "--backend", "stub=mongodb://"+stub+"/?directConnection=true", "--log-level", "error")
	if err := launch(cmd); err != nil {
		return "", nil, errors.Join(err, fl.Close())
	}
	stop := func() { _ = fl.Close() }
	if err := reachable(addr); err != nil {
		stop()
		return "", nil, err
	}
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + addr + "/"))
	if err == nil {
		err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "enableSharding", Value: "bench"}, {Key: "primaryShard", Value: "stub"}}).Err()
		_ = c.Disconnect(ctx)
	}
	if err != nil {
		stop()
	}
	return addr, stop, err
}

func compare(targets []target, conns int, seconds float64, samples int) error {
	rates := map[string][]float64{}
	lat := map[string][]time.Duration{}
	for range samples {
		order := slices.Clone(targets)
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, t := range order {
			r, l, err := sample(t.addr, conns, time.Duration(seconds*float64(time.Second)))
			if err != nil {
				return fmt.Errorf("%s with %d connections: %w", t.name, conns, err)
			}
			rates[t.name] = append(rates[t.name], r)
			lat[t.name] = append(lat[t.name], l...)
		}
	}
	direct := median(rates["direct"])
	hap := median(rates["haproxy"])
	for _, t := range targets {
		m := median(rates[t.name])
		slices.Sort(lat[t.name])
		l := lat[t.name]
		line := fmt.Sprintf("%4d conns  %-9s %8.0f ops/s  %.2f of direct", conns, t.name, m, m/direct)
		if hap > 0 {
			line += fmt.Sprintf("  %.2f of haproxy", m/hap)
		}
		fmt.Printf("%s  p50 %s  p99 %s\n", line, l[len(l)/2].Round(time.Microsecond), l[len(l)*99/100].Round(time.Microsecond))
	}
	return nil
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// sample runs conns connections in a closed loop and returns the rate and each client's sampled latencies.
func sample(addr string, conns int, length time.Duration) (float64, []time.Duration, error) {
	type result struct {
		n   int
		lat []time.Duration
		err error
	}
	results := make(chan result, conns)
	end := time.Now().Add(length)
	for i := range conns {
		go func() {
			n, lat, err := client(addr, int32(i), end)
			results <- result{n, lat, err}
		}()
	}
	total := 0
	var lat []time.Duration
	var first error
	for range conns {
		r := <-results
		total += r.n
		lat = append(lat, r.lat...)
		if first == nil {
			first = r.err
		}
	}
	return float64(total) / length.Seconds(), lat, first
}

// client sends one find after the other until end.
func client(addr string, key int32, end time.Time) (n int, lat []time.Duration, err error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = c.Close() }()
	msg, err := request(key)
	if err != nil {
		return 0, nil, err
	}
	r := bufio.NewReaderSize(c, 16<<10)
	for at := time.Now(); at.Before(end); n++ {
		if _, err := c.Write(msg); err != nil {
			return n, lat, err
		}
		head, err := r.Peek(4)
		if err != nil {
			return n, lat, err
		}
		size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
		if _, err := io.CopyN(io.Discard, r, int64(size)); err != nil {
			return n, lat, err
		}
		now := time.Now()
		if n%16 == 0 {
			lat = append(lat, now.Sub(at))
		}
		at = now
	}
	return n, lat, nil
}
