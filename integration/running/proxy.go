// Package running runs the proxy as a process of its own, for tests and benchmarks: built once, killed, started again.
package running

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/config"
	"github.com/shardway/shardway/fleet"
)

const (
	startLimit = 60 * time.Second
	stopLimit  = 40 * time.Second // longer than the default drainTimeout
	readyPoll  = 20 * time.Millisecond
)

// program is the built binary and its directory. Cleanup removes it.
var program struct {
	sync.Mutex
	path string
	err  error
}

// Build builds the proxy, once per process, and returns the binary's path. Cleanup removes it.
func Build() (string, error) {
	program.Lock()
	defer program.Unlock()
	if program.path != "" || program.err != nil {
		return program.path, program.err
	}
	dir, err := os.MkdirTemp("", "shardway-running-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "shardway")
	out, err := exec.Command("go", "build", "-o", path, "github.com/shardway/shardway/cmd/proxy").CombinedOutput()
	if err != nil {
		program.err = errors.Join(fmt.Errorf("go build: %w\n%s", err, out), os.RemoveAll(dir))
		return "", program.err
	}
	program.path = path
	return path, nil
}

// Cleanup removes what Build made; call it when the tests are over.
func Cleanup() error {
	program.Lock()
	defer program.Unlock()
	if program.path == "" {
		return nil
	}
	path := program.path
	program.path = ""
	return os.RemoveAll(filepath.Dir(path))
}

// Options say how a proxy is started. The zero value cannot run: Backends must name one at least.
type Options struct {
	// Backends are the connection strings; the ids are b1, b2, … in this order, and the catalog is on b1.
	Backends []string
	// IDs, if there are any, are the ids instead; the catalog is on the first.
	IDs []string
	// Args are further arguments of serve.
	Args []string
	// LogFile gets the proxy's log, of all its lives, one after the other. Empty: nobody keeps it.
	LogFile string
}

// Proxy is one proxy on a port that stays its own over restarts. Its methods are for one goroutine, but for Addr and URI.
type Proxy struct {
	options Options
	port    *fleet.Port
	cmd     *exec.Cmd
	exited  chan error // gets how the process ended, once
}

// Start builds the proxy if need be, starts it and returns when it answers hello. The caller must Close it.
func Start(ctx context.Context, o Options) (*Proxy, error) {
	if _, err := Build(); err != nil {
		return nil, err
	}
	port, err := fleet.TakeFreePort("127.0.0.1")
	if err != nil {
		return nil, err
	}
	p := &Proxy{options: o, port: port}
	if err := p.Restart(ctx); err != nil {
		port.Release()
		return nil, err
	}
	return p, nil
}

// Addr is the proxy's host and port.
func (p *Proxy) Addr() string { return "127.0.0.1:" + strconv.Itoa(p.port.Number()) }

// URI is the proxy's connection string.
func (p *Proxy) URI() string { return "mongodb://" + p.Addr() + "/" }

// PID is the process id of the newest process.
func (p *Proxy) PID() int { return p.cmd.Process.Pid }

// Restart starts the proxy after its end, killing it first if it still runs.
func (p *Proxy) Restart(ctx context.Context) error {
	if err := p.Launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return p.AwaitReady(ctx)
}

// Launch is Restart without waiting for the proxy to answer.
func (p *Proxy) Launch() error {
	if err := p.Kill(); err != nil {
		return err
	}
	path, err := Build()
	if err != nil {
		return err
	}
	id := func(i int) string {
		if len(p.options.IDs) > 0 {
			return p.options.IDs[i]
		}
		return "b" + strconv.Itoa(i+1)
	}
	args := []string{"serve", "--listen", p.Addr(), "--catalog", id(0)}
	for i, uri := range p.options.Backends {
		args = append(args, "--backend", id(i)+"="+uri)
	}
	cmd := exec.Command(path, append(args, p.options.Args...)...)
	cmd.Env = config.WithoutOurs(os.Environ()) // the tests' own variables are unknown keys to it
	if p.options.LogFile != "" {
		log, err := os.OpenFile(p.options.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer log.Close() // the child has its own descriptor
		cmd.Stdout, cmd.Stderr = log, log
	}
	if err := fleet.StartChild(cmd); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	p.cmd, p.exited = cmd, exited
	return nil
}

// AwaitReady returns when the proxy answers hello; with an error when it ends before, or ctx does.
func (p *Proxy) AwaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		reply, err := fleet.Command(ctx, p.Addr(), bson.D{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}})
		if err == nil {
			if msg, _ := reply.Lookup("msg").StringValueOK(); msg != "isdbgrid" {
				return fmt.Errorf("hello says %v", reply)
			}
			return nil
		}
		select {
		case how := <-p.exited:
			p.exited <- how
			return fmt.Errorf("the proxy ended while starting: %v; the end of its log:\n%s", how, p.logTail())
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err, p.Kill(), fmt.Errorf("the end of its log:\n%s", p.logTail()))
		case <-tick.C:
		}
	}
}

// Running reports whether the process has not ended.
func (p *Proxy) Running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case how := <-p.exited:
		p.exited <- how
		return false
	default:
		return true
	}
}

// Kill ends the proxy with SIGKILL and waits until it is gone. Killing a dead one does nothing.
func (p *Proxy) Kill() error {
	if p.cmd == nil {
		return nil
	}
	if p.Running() {
		if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	how := <-p.exited
	p.exited <- how
	return nil
}

// Stop ends the proxy with SIGTERM; the error says so when it did not exit with 0 in time.
func (p *Proxy) Stop() error {
	if !p.Running() {
		return errors.New("the proxy had ended before")
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case how := <-p.exited:
		p.exited <- how
		return how
	case <-limit.C:
		return errors.Join(errors.New("the proxy outlived SIGTERM"), p.Kill())
	}
}

// Close kills the proxy and gives its port back.
func (p *Proxy) Close() error {
	err := p.Kill()
	p.port.Release()
	return err
}

// Log is what the proxy has logged so far, in all its lives.
func (p *Proxy) Log() string {
	text, err := os.ReadFile(p.options.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (p *Proxy) logTail() string {
	const keep = 4000
	text := []byte(p.Log())
	return string(bytes.TrimSpace(text[max(0, len(text)-keep):]))
}
