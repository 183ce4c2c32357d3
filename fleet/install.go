package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The pinned versions: what the tests were last passed on.
const (
	crateName    = "secantus-mdb"
	crateVersion = "0.5.3-beta.196"
	wheelName    = "secantusdb"
	wheelVersion = "0.7.0b3"
)

// CacheDir is where servers are installed: the directory "shardway" in the user's cache directory.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("the user's cache directory: %w", err)
	}
	return filepath.Join(dir, "shardway"), nil
}

// install returns a server from the cache directory, putting it there first if need be. One process
// installs at a time; the others wait for it and find its work done.
func install(ctx context.Context, o Options) (Program, error) {
	cache, err := CacheDir()
	if err != nil {
		return Program{}, err
	}
	if p, ok := cached(cache, o.QuickInstall); ok {
		return p, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Program{}, err
	}
	lock, err := lockFile(ctx, filepath.Join(cache, "install.lock"))
	if err != nil {
		return Program{}, err
	}
	defer lock.Close()
	if p, ok := cached(cache, o.QuickInstall); ok {
		return p, nil
	}

	methods := []func(context.Context, string, io.Writer) (Program, error){installCargo, installWheel}
	if o.QuickInstall {
		methods[0], methods[1] = methods[1], methods[0]
	}
	var errs []error
	for _, method := range methods {
		p, err := method(ctx, cache, o.installLog())
		if err == nil {
			return p, nil
		}
		errs = append(errs, err)
	}
	return Program{}, fmt.Errorf("%w: put mongod on PATH, or install Rust (cargo, cmake, a C compiler) or Python 3.10–3.13 (with venv), or name a server program in %s: %w",
		ErrNoServer, EnvServer, errors.Join(errs...))
}

// cached finds what an earlier installation left. Tests prefer building to a cached wheel, since
// the wheel lacks much of what they need; so the wheel counts only when asked for, or without cargo.
func cached(cache string, wheelWillDo bool) (Program, bool) {
	if path := cargoBinary(cache); isProgram(path) && pinned(path) {
		return Program{Path: path, Kind: SecantusRS}, true
	}
	if _, err := exec.LookPath("cargo"); err == nil && !wheelWillDo {
		return Program{}, false
	}
	if path := wheelBinary(cache); isProgram(path) && exists(wheelDone(cache)) {
		return Program{Path: path, Kind: SecantusPy}, true
	}
	return Program{}, false
}

func cargoRoot(cache string) string   { return filepath.Join(cache, "secantusd") }
func cargoBinary(cache string) string { return filepath.Join(cargoRoot(cache), "bin", "secantusd-rs") }
func wheelRoot(cache string) string   { return filepath.Join(cache, "secantusd-py-"+wheelVersion) }
func wheelBinary(cache string) string { return filepath.Join(wheelRoot(cache), "bin", "secantusd-py") }
func wheelDone(cache string) string   { return filepath.Join(wheelRoot(cache), ".complete") }

// pinned reports whether the cached binary is of the version this checkout was tested on.
func pinned(path string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	return err == nil && strings.Contains(string(out), crateVersion)
}

func installCargo(ctx context.Context, cache string, log io.Writer) (Program, error) {
	cargo, err := exec.LookPath("cargo")
	if err != nil {
		return Program{}, err
	}
	fmt.Fprintf(log, "fleet: building the test server %s %s with cargo; once, 4 to 7 minutes on two cores\n", crateName, crateVersion)
	cmd := exec.CommandContext(ctx, cargo, "install", crateName, "--version", "="+crateVersion,
		"--locked", "--ignore-rust-version", "--force", "--root", cargoRoot(cache))
	if err := runShown(cmd, log); err != nil {
		return Program{}, fmt.Errorf("cargo install %s: %w", crateName, err)
	}
	return Program{Path: cargoBinary(cache), Kind: SecantusRS}, nil
}

func installWheel(ctx context.Context, cache string, log io.Writer) (Program, error) {
	python, err := findPython(ctx)
	if err != nil {
		return Program{}, err
	}
	root := wheelRoot(cache)
	fmt.Fprintf(log, "fleet: installing the demonstration server %s %s with %s; once, under a minute\n", wheelName, wheelVersion, filepath.Base(python))
	if err := runShown(exec.CommandContext(ctx, python, "-m", "venv", "--clear", root), log); err != nil {
		return Program{}, fmt.Errorf("python venv: %w", err)
	}
	pip := exec.CommandContext(ctx, filepath.Join(root, "bin", "python"), "-m", "pip", "install",
		"--disable-pip-version-check", "--progress-bar", "off", wheelName+"=="+wheelVersion)
	if err := runShown(pip, log); err != nil {
		return Program{}, fmt.Errorf("pip install %s: %w", wheelName, err)
	}
	if !isProgram(wheelBinary(cache)) {
		return Program{}, fmt.Errorf("%s %s brought no program secantusd-py", wheelName, wheelVersion)
	}
	if err := os.WriteFile(wheelDone(cache), nil, 0o644); err != nil {
		return Program{}, err
	}
	return Program{Path: wheelBinary(cache), Kind: SecantusPy}, nil
}

// findPython returns an interpreter that the wheel is built for.
func findPython(ctx context.Context) (string, error) {
	const check = "import sys, venv, ensurepip; sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 13)))"
	for _, name := range []string{"python3", "python3.13", "python3.12", "python3.11", "python3.10", "python"} {
		path, err := exec.LookPath(name)
		if err == nil && exec.CommandContext(ctx, path, "-c", check).Run() == nil {
			return path, nil
		}
	}
	return "", errors.New("no Python 3.10–3.13 with venv on PATH")
}

// runShown runs cmd and passes its output on line by line; a failure's error carries the last lines.
func runShown(cmd *exec.Cmd, log io.Writer) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	var tail []string
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fmt.Fprintf(log, "  %s\n", lines.Text())
		if tail = append(tail, lines.Text()); len(tail) > 15 {
			tail = tail[1:]
		}
	}
	_, _ = io.Copy(io.Discard, out) // a line over the buffer must not block the program
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, strings.Join(tail, "\n"))
	}
	return nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
