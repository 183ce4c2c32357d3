package fleet

import (
	"os/exec"
	"runtime"
	"sync"
)

// spawner is the one thread that starts children. Linux ties "tell me when my parent dies" to the
// parent's thread, not its process, and Go ends threads as it likes; so this one is locked and
// lives as long as the process.
var spawner = sync.OnceValue(func() chan<- spawnRequest {
	requests := make(chan spawnRequest)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.done <- r.cmd.Start()
		}
	}()
	return requests
})

type spawnRequest struct {
	cmd  *exec.Cmd
	done chan<- error
}

// StartChild is cmd.Start for a child in a process group of its own (a Ctrl-C at the terminal does
// not reach it) that the kernel kills when this process ends, however it ends. Elsewhere than on
// Linux only the process group is set: there, a parent killed with SIGKILL leaves its children.
func StartChild(cmd *exec.Cmd) error {
	setChildAttributes(cmd)
	done := make(chan error, 1)
	spawner() <- spawnRequest{cmd, done}
	return <-done
}
