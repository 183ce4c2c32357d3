package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet"
)

// proxyStartLimit bounds a proxy's start; it waits for the backends.
const proxyStartLimit = time.Minute

// drainLimit is how long a proxy may take to end after SIGTERM.
const drainLimit = 15 * time.Second

// proxy is one proxy process, started again on the same address when it dies.
type proxy struct {
	name    string
	addr    string
	program string
	args    []string
	logPath string

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	exited chan struct{}
}

func newProxy(o Options, number int, addr, dir string, f *fleet.Fleet) *proxy {
	args := []string{
		"serve", "--listen", addr, "--catalog", backendID(0),
		"--max-partition-bytes", o.MaxPartitionBytes.String(), "--reshape-check-interval", "1s",
	}
	for i, s := range f.Servers {
		args = append(args, "--backend", backendID(i)+"="+s.URI())
	}
	name := fmt.Sprintf("proxy%d", number)
	return &proxy{name: name, addr: addr, program: o.Self, args: args, logPath: filepath.Join(dir, name+".log")}
}

func backendID(index int) string { return fmt.Sprintf("backend%d", index+1) }

func (p *proxy) uri() string { return "mongodb://" + p.addr + "/" }

func (p *proxy) running() (pid int, exited <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid, p.exited
}

// start runs the proxy and waits until it answers. On an error nothing is left running.
func (p *proxy) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, proxyStartLimit)
	defer cancel()
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	cmd := exec.Command(p.program, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := fleet.StartChild(cmd); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its log says why
		close(exited)
	}()
	p.mu.Lock()
	p.cmd, p.exited = cmd, exited
	p.mu.Unlock()
	if err := p.awaitReady(ctx, exited); err != nil {
		_ = cmd.Process.Kill()
		<-exited
		return fmt.Errorf("%s: %w; its log is %s and ends:\n%s", p.name, err, p.logPath, tail(p.logPath))
	}
	return nil
}

func (p *proxy) awaitReady(ctx context.Context, exited <-chan struct{}) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := fleet.Command(ctx, p.addr, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return errors.New("ended at once")
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// stop lets the proxy drain, and kills it if that takes too long.
func (p *proxy) stop() {
	p.mu.Lock()
	cmd, exited := p.cmd, p.exited
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = cmd.Process.Signal(syscall.SIGCONT) // a stopped process takes SIGTERM only then
	select {
	case <-exited:
	case <-time.After(drainLimit):
		_ = cmd.Process.Kill()
		<-exited
	}
}

func tail(path string) string {
	const keep = 2000
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-keep):])
}
