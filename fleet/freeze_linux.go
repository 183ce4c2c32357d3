package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// stopWait bounds the wait for a process's threads to stop; one in a long system call stops after it.
const stopWait = 10 * time.Second

// awaitStopped waits until every thread of the process is stopped.
func awaitStopped(r *run) error {
	tasks := fmt.Sprintf("/proc/%d/task/*/stat", r.cmd.Process.Pid)
	deadline := time.After(stopWait)
	for !allStopped(tasks) {
		select {
		case <-r.exited:
			return ErrNotRunning
		case <-deadline:
			return errors.New("the server does not stop on SIGSTOP")
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func allStopped(tasks string) bool {
	files, err := filepath.Glob(tasks)
	if err != nil || len(files) == 0 {
		return false
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // that thread has ended
		}
		// The state follows the name, which stands in parentheses and may hold any byte.
		if end := bytes.LastIndex(stat, []byte(") ")); err != nil || end < 0 || stat[end+2] != 'T' {
			return false
		}
	}
	return true
}
