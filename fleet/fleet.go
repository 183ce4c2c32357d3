package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

const (
	tempPrefix = "shardway-fleet-"
	ownerLock  = "owner.lock" // locked as long as the directory's fleet lives
	stopLimit  = 10 * time.Second

	// Somebody who knows nothing of our locks may take a port between the look and the start.
	portTries = 5
)

// Fleet is a number of servers, all of one make.
type Fleet struct {
	// Servers are the fleet's servers in order; more come with Add. The fleet owns them.
	Servers []*Server

	program Program
	options Options
	dir     string
	temp    bool // dir is ours to remove
	owner   *os.File
	close   sync.Once
	closed  error
}

// Start starts n servers and returns when all of them answer and take writes. The caller must Close
// the fleet. The error wraps [ErrNoServer] when there is no server program and none can be
// installed. ctx bounds the start, not the fleet's life.
func Start(ctx context.Context, n int, o Options) (*Fleet, error) {
	program, err := Find(ctx, o)
	if err != nil {
		return nil, err
	}
	f := &Fleet{program: program, options: o, dir: o.Dir}
	if err := f.makeDir(); err != nil {
		return nil, err
	}
	for range n {
		if _, err := f.Add(ctx); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// Program is the server program the fleet runs.
func (f *Fleet) Program() Program { return f.program }

// Dir is the directory that holds the servers' directories.
func (f *Fleet) Dir() string { return f.dir }

// Add starts one more server. It must not be called from several goroutines at once.
func (f *Fleet) Add(ctx context.Context) (*Server, error) {
	number := len(f.Servers) + 1
	s := &Server{program: f.program, options: f.options, dir: filepath.Join(f.dir, "backend"+strconv.Itoa(number))}
	if err := os.MkdirAll(filepath.Join(s.dir, "data"), 0o755); err != nil {
		return nil, err
	}
	if !f.options.Standalone {
		s.setName = f.setName(number)
	}
	for try := 1; ; try++ {
		p, err := f.choosePort(s.dir)
		if err != nil {
			return nil, err
		}
		s.port = p
		err = s.start(ctx)
		if err == nil {
			f.Servers = append(f.Servers, s)
			return s, errors.Join(s.makeFront(), savePort(s.dir, p))
		}
		p.Release()
		if !errors.Is(err, ErrNotRunning) || try == portTries {
			return nil, err
		}
	}
}

// setName: SecantusDB's set is always called secantus; a mongod's is ours to choose.
func (f *Fleet) setName(number int) string {
	if f.program.Kind == Mongod {
		return "rs" + strconv.Itoa(number)
	}
	return "secantus"
}

// Close ends all servers: at once when their data are temporary, else with SIGTERM and time to
// write. It is safe to call more than once.
func (f *Fleet) Close() error {
	f.close.Do(func() { f.closed = f.shutdown() })
	return f.closed
}

func (f *Fleet) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	errs := make([]error, len(f.Servers))
	var wg sync.WaitGroup
	for i, s := range f.Servers {
		wg.Go(func() {
			var front error
			if s.front != nil {
				front = s.front.Close()
			}
			if f.temp {
				errs[i] = s.Kill()
			} else {
				errs[i] = s.Stop(ctx)
			}
			errs[i] = errors.Join(errs[i], front)
			s.port.Release()
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	if f.temp {
		err = errors.Join(err, os.RemoveAll(f.dir))
	}
	return errors.Join(err, f.owner.Close())
}

// makeDir makes the fleet's directory and locks it, so that no two fleets serve the same data.
func (f *Fleet) makeDir() error {
	if f.temp = f.dir == ""; f.temp {
		sweep()
		dir, err := os.MkdirTemp("", tempPrefix)
		if err != nil {
			return err
		}
		f.dir = dir
	}
	dir, err := filepath.Abs(f.dir)
	if err != nil {
		return err
	}
	f.dir = dir
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	f.owner, err = tryLockFile(filepath.Join(f.dir, ownerLock))
	if errors.Is(err, errLocked) {
		return fmt.Errorf("%s is in use by another fleet", f.dir)
	}
	return err
}

// sweep removes temporary directories of fleets that were killed before they could do it.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	for _, dir := range dirs {
		// A directory without the lock file is being made at this moment.
		if path := filepath.Join(dir, ownerLock); exists(path) {
			if lock, err := tryLockFile(path); err == nil {
				os.RemoveAll(dir)
				lock.Close()
			}
		}
	}
}
