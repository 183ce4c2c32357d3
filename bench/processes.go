package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/config"
	"github.com/shardway/shardway/fleet"
)

// processes are the programs of one run; none outlives it.
type processes struct {
	dir      string
	children []*exec.Cmd
	fleets   []*fleet.Fleet
}

// build makes the run's directory with the programs that it needs.
func build(ctx context.Context) (*processes, error) {
	dir, err := os.MkdirTemp("", "shardway-bench")
	if err != nil {
		return nil, err
	}
	p := &processes{dir: dir}
	for _, name := range []string{"bench/stub", "cmd/proxy"} {
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, filepath.Base(name)), "./"+name).CombinedOutput(); err != nil {
			p.close()
			return nil, fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return p, nil
}

// close ends everything, the youngest first.
func (p *processes) close() {
	for _, cmd := range slices.Backward(p.children) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for _, f := range p.fleets {
		_ = f.Close()
	}
	_ = os.RemoveAll(p.dir)
}

func (p *processes) launch(cmd *exec.Cmd) error {
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	p.children = append(p.children, cmd)
	return nil
}

// stub starts a stub server and returns its address.
func (p *processes) stub(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, "stub"), args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := p.launch(cmd); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line), err
}

// servers starts n real servers.
func (p *processes) servers(ctx context.Context, n int, name string) ([]*fleet.Server, error) {
	f, err := fleet.Start(ctx, n, fleet.Options{Dir: filepath.Join(p.dir, name)})
	if err != nil {
		return nil, err
	}
	p.fleets = append(p.fleets, f)
	return f.Servers, nil
}

// haproxy starts HAProxy in TCP mode with two threads; errNotInstalled when there is none.
func (p *processes) haproxy(ctx context.Context, to string) (target, error) {
	program, err := exec.LookPath("haproxy")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/haproxy"); err != nil {
			return target{}, errNotInstalled
		}
	}
	addr, err := freePort()
	if err != nil {
		return target{}, err
	}
	conf := filepath.Join(p.dir, "haproxy"+strconv.Itoa(len(p.children))+".cfg")
	text := fmt.Sprintf("global\n nbthread 2\n maxconn 4000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\nlisten l\n bind %s\n server s %s\n", addr, to)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return target{}, err
	}
	cmd := exec.CommandContext(ctx, program, "-db", "-f", conf)
	if err := p.launch(cmd); err != nil {
		return target{}, err
	}
	return target{name: "haproxy", addr: addr, pid: cmd.Process.Pid}, reachable(addr)
}

var errNotInstalled = errors.New("it is not installed")

// mongobetween starts mongobetween as far as it is on PATH.
func (p *processes) mongobetween(ctx context.Context, to string) (target, error) {
	program, err := exec.LookPath("mongobetween")
	if err != nil {
		return target{}, errNotInstalled
	}
	addr, err := freePort()
	if err != nil {
		return target{}, err
	}
	cmd := exec.CommandContext(ctx, program, "-loglevel", "fatal", addr+"=mongodb://"+to+"/?maxpoolsize=256&directConnection=true")
	if err := p.launch(cmd); err != nil {
		return target{}, err
	}
	return target{name: "mongobetween", addr: addr, pid: cmd.Process.Pid}, reachable(addr)
}

// shardway starts the proxy. The catalog lives on the backend a.
func (p *processes) shardway(ctx context.Context, backends map[string]string, args ...string) (target, error) {
	addr, err := freePort()
	if err != nil {
		return target{}, err
	}
	args = append([]string{"serve", "--listen", addr, "--catalog", "a", "--log-level", "error"}, args...)
	for id, uri := range backends {
		args = append(args, "--backend", id+"="+uri)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, "proxy"), args...)
	cmd.Env = config.WithoutOurs(os.Environ())
	if err := p.launch(cmd); err != nil {
		return target{}, err
	}
	return target{name: "shardway", addr: addr, pid: cmd.Process.Pid}, reachable(addr)
}

// shard makes bench.c a collection with the key k in so many partitions, all on the backend primary.
func shard(ctx context.Context, proxy, primary string, partitions int) error {
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + proxy + "/").SetTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = c.Disconnect(ctx) }()
	for _, cmd := range []bson.D{
		{{Key: "balancerStop", Value: 1}},
		{{Key: "enableSharding", Value: "bench"}, {Key: "primaryShard", Value: primary}},
		{{Key: "shardCollection", Value: "bench.c"}, {Key: "key", Value: bson.D{{Key: "k", Value: "hashed"}}}, {Key: "numInitialChunks", Value: partitions}},
	} {
		if err := c.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
			return fmt.Errorf("%s: %w", cmd[0].Key, err)
		}
	}
	return nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
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

// cpu returns the CPU time that a process has used, 0 where that cannot be told.
func cpu(pid int) time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * (time.Second / 100)
}

// resident returns the resident bytes of a process.
func resident(pid int) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	n, _ := strconv.ParseInt(f[1], 10, 64)
	return n * int64(os.Getpagesize())
}
