package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shardway/shardway/config"
	"github.com/shardway/shardway/fleet"
)

// envMain makes the test binary the program itself, so that the tests run it as a process. The processes that this one starts, being the same binary, must inherit
// it: without it they would be tests that start more. It is no name of a setting, since the program refuses those that it does not know.
const envMain = "TEST_SHARDWAY_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program is a running shardway.
type program struct {
	cmd    *exec.Cmd
	lines  chan string // of standard output; closed at its end
	exited chan error
	stderr buffer
}

// buffer is a bytes.Buffer that a process writes while the test reads.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// environment is what the program gets: nothing of what these tests themselves were told, but for the server that they run on.
func environment(more ...string) []string {
	env := append(config.WithoutOurs(os.Environ()), envMain+"=1")
	if server := os.Getenv(fleet.EnvServer); server != "" {
		env = append(env, fleet.EnvServer+"="+server)
	}
	return append(env, more...)
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(os.Args[0], args...), lines: make(chan string, 1000), exited: make(chan error, 1)}
	p.cmd.Env = environment()
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			p.lines <- scanner.Text()
		}
		close(p.lines)
		p.exited <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // usually it has ended
		<-done
		if t.Failed() {
			t.Logf("standard error:\n%s", p.stderr.String())
		}
	})
	return p
}

// line returns the next line of standard output.
func (p *program) line(t *testing.T) string {
	t.Helper()
	select {
	case text, ok := <-p.lines:
		if !ok {
			t.Fatalf("standard output ended; standard error:\n%s", p.stderr.String())
		}
		return text
	case <-time.After(20 * time.Minute): // a server may have to be built
		t.Fatal("no line on standard output")
	}
	return ""
}

// terminate sends SIGTERM and wants the exit code 0.
func (p *program) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.exited:
		if err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("still running a minute after SIGTERM")
	}
}

// run runs shardway to its end.
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return runWith(t, environment(), args...)
}

func runWith(t *testing.T, env []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func TestVersion(t *testing.T) {
	if out, _, err := run(t, "version"); err != nil || !strings.HasPrefix(out, "shardway ") || !strings.Contains(out, "go1.") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yaml", "backends: {a: \"mongodb://127.0.0.1:1/\"}\n")
	bad := write("bad.yaml", "backends: {a: \"mongodb://127.0.0.1:1/\"}\nlistne: here\n")
	if out, errs, err := run(t, "serve", "--check", "--config", good); err != nil {
		t.Errorf("good: %q, %q, %v", out, errs, err)
	}
	if out, _, err := run(t, "serve", "--check", "--config", "../../configs/shardway.yaml"); err != nil {
		t.Errorf("the example: %q, %v", out, err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown key":  {[]string{"--config", bad}, "did you mean listen?"},
		"unknown flag": {[]string{"--lisen", "x"}, "unknown flag: --lisen; did you mean --listen?"},
		"no backends":  {nil, "backends: none is given"},
		"argument":     {[]string{"--config", good, "extra"}, "extra"},
	} {
		_, errs, err := run(t, append([]string{"serve", "--check"}, c.args...)...)
		var exit *exec.ExitError
		if !asExit(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: %v, %q, want exit code 1 and %q", name, err, errs, c.want)
		}
	}
	for _, args := range [][]string{{"serve", "--check", "--config", good}, {"sandbox", "--listen", "127.0.0.1:0"}} {
		_, errs, err := runWith(t, environment("SHARDWAY_LISTNE=h:1"), args...)
		var exit *exec.ExitError
		if !asExit(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errs, "SHARDWAY_LISTNE; did you mean SHARDWAY_LISTEN?") {
			t.Errorf("%q with an unknown variable: %v, %q", args, err, errs)
		}
	}
}

func asExit(err error, target **exec.ExitError) bool {
	e, ok := err.(*exec.ExitError)
	*target = e
	return ok
}

// alive is false for zombies too.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || !strings.Contains(string(stat), ") Z ")
}
