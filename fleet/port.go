package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Ports come from below 32768, where the kernels' ranges for clients' sockets begin: a port above
// might be taken by somebody's client between a server's death and its restart.
const (
	firstPort = 20100
	lastPort  = 32700

	portFile = "port" // in a server's directory: the port its data were last served on
)

// ErrPortTaken means that somebody listens on the port or that another fleet holds it.
var ErrPortTaken = errors.New("port is taken")

// Port is a port held for one process as long as its fleet or sandbox lives, also while that process
// is down: other fleets of this user, in whatever process, keep off it.
type Port struct {
	number int
	lock   *os.File
}

// Number is the port's number.
func (p *Port) Number() int { return p.number }

// Release lets others have the port.
func (p *Port) Release() { p.lock.Close() }

// TakeFreePort finds a port that is free on host and that no other fleet holds.
func TakeFreePort(host string) (*Port, error) {
	for range 200 {
		p, err := TakePort(host, firstPort+rand.IntN(lastPort-firstPort))
		if !errors.Is(err, ErrPortTaken) {
			return p, err
		}
	}
	return nil, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

// TakePort takes one port. The error wraps ErrPortTaken when somebody has it.
func TakePort(host string, number int) (*Port, error) {
	dir := filepath.Join(os.TempDir(), "shardway-ports-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := tryLockFile(filepath.Join(dir, strconv.Itoa(number)))
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("%w: %d", ErrPortTaken, number)
	}
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(number)))
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: %w", ErrPortTaken, err)
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &Port{number, lock}, l.Close()
}

func loopback(number int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(number)) }

// choosePort takes the port that the data in dir were served on before, or any free one: a replica
// set's configuration names its member's port.
func (f *Fleet) choosePort(dir string) (*Port, error) {
	text, err := os.ReadFile(filepath.Join(dir, portFile))
	if errors.Is(err, os.ErrNotExist) {
		return TakeFreePort("127.0.0.1")
	}
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, portFile), err)
	}
	p, err := TakePort("127.0.0.1", number)
	if err != nil && f.program.Kind != Mongod {
		return TakeFreePort("127.0.0.1") // SecantusDB's set moves with its port
	}
	return p, err
}

func savePort(dir string, p *Port) error {
	return os.WriteFile(filepath.Join(dir, portFile), []byte(strconv.Itoa(p.number)+"\n"), 0o644)
}
