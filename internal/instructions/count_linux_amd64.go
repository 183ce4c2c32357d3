package instructions

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// most is how many instructions are counted before the code is taken for one that does not end.
const most = 5_000_000

// limit is how long counting may take.
const limit = time.Minute

// runs is how often the code is counted; the least is what it takes.
const runs = 3

// warmUp is how often the code runs before it is counted, so that pools are filled and lazy things are made.
const warmUp = 300

func init() {
	if os.Getenv(environment) != "" {
		runtime.LockOSThread() // the main goroutine stays on the thread that is traced
	}
}

// Main is to be called by TestMain. In the copy that Count starts it runs the code of that name and ends the process; otherwise it does nothing. make makes
// the code, and may be as slow as it likes.
func Main(codes map[string]func() (code func())) {
	name := os.Getenv(environment)
	if name == "" {
		return
	}
	code := codes[name]()
	for range warmUp {
		code()
	}
	runtime.GC()
	code()
	for range runs {
		runtime.Breakpoint()
		code()
	}
	runtime.Breakpoint()
	os.Exit(0)
}

// Count returns how many instructions the code of that name takes. The error is ErrUnavailable where nothing can be counted.
func Count(name string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread() // ptrace is between threads
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), environment+"="+name, "GOGC=off", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EACCES) {
			return 0, ErrUnavailable
		}
		return 0, err
	}
	pid := cmd.Process.Pid
	var held []int
	tooLong := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer func() {
		tooLong.Stop()
		_ = cmd.Process.Kill()
		for _, tid := range held { // the process is not gone before its traced threads are
			var status syscall.WaitStatus
			_, _ = syscall.Wait4(tid, &status, syscall.WALL, nil)
		}
		_, _ = cmd.Process.Wait()
	}()
	if _, err := stopped(pid); err != nil { // at its start
		return 0, err
	}
	from, err := untilBreakpoint(pid)
	if err == nil {
		held, err = holdOthers(pid)
	}
	if err != nil {
		return 0, err
	}
	least := most
	for range runs {
		n, err := stepTo(pid, from)
		if err != nil {
			return 0, fmt.Errorf("instructions: %s: %w", name, err)
		}
		least = min(least, n)
	}
	return least, nil
}

// stepTo counts the steps until the process is at an address.
func stepTo(pid int, to uint64) (int, error) {
	for n := 1; n < most; n++ {
		if err := syscall.PtraceSingleStep(pid); err != nil {
			return 0, err
		}
		at, err := stopped(pid)
		if err != nil {
			return 0, err
		}
		if at == to {
			return n, nil
		}
	}
	return 0, errors.New("it does not end")
}

// holdOthers stops the process's other threads: Go's monitor would have the code make way for others after 10 ms, which single steps take longer than.
func holdOthers(pid int) (held []int, err error) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil || tid == pid {
			continue
		}
		if err := syscall.PtraceAttach(tid); err != nil {
			return held, err
		}
		held = append(held, tid)
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(tid, &status, syscall.WALL, nil); err != nil {
			return held, err
		}
	}
	return held, nil
}

// untilBreakpoint runs the process to its next breakpoint and returns the address behind it.
func untilBreakpoint(pid int) (uint64, error) {
	for sig := 0; ; {
		if err := syscall.PtraceCont(pid, sig); err != nil {
			return 0, err
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
			return 0, err
		}
		switch {
		case !status.Stopped():
			return 0, fmt.Errorf("instructions: the traced process ended: %v", status)
		case status.StopSignal() == syscall.SIGTRAP:
			var regs syscall.PtraceRegs
			err := syscall.PtraceGetRegs(pid, &regs)
			return regs.Rip, err
		}
		sig = int(status.StopSignal())
	}
}

// stopped waits until the process has stopped and returns where. Signals of Go's runtime are left to it by dropping them: none is sent
// that the code depends on.
func stopped(pid int) (uint64, error) {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return 0, err
	}
	if !status.Stopped() {
		return 0, fmt.Errorf("instructions: the traced process ended: %v", status)
	}
	var regs syscall.PtraceRegs
	err := syscall.PtraceGetRegs(pid, &regs)
	return regs.Rip, err
}
