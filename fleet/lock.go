package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// errLocked means that another process, or another fleet of this one, holds the lock.
var errLocked = errors.New("locked by another process")

// tryLockFile takes an exclusive lock on path, which it creates. Closing the file, or the process's
// death, gives it up. The error is errLocked if somebody else has it.
func tryLockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// lockFile is tryLockFile that waits until ctx ends. It tries again rather than block in the
// kernel, so that ctx can end it.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := tryLockFile(path)
		if !errors.Is(err, errLocked) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another process to install the server: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
