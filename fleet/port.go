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
)

// Ports come from below 32768, where the kernels' ranges for clients' sockets begin: a port above
// might be taken by somebody's client between a server's death and its restart.
const (
	firstPort = 20100
	lastPort  = 32700

	portFile = "port" // in a server's directory: the port its data were last served on
)

var errPortTaken = errors.New("port is taken")

// port is a loopback port held for one server as long as its fleet lives, also while that server
// is down: other fleets of this user, in whatever process, keep off it.
type port struct {
	number int
	lock   *os.File
}

// takePort finds a port that is free and that no other fleet holds.
func takePort() (port, error) {
	for range 200 {
		p, err := takeNumber(firstPort + rand.IntN(lastPort-firstPort))
		if !errors.Is(err, errPortTaken) {
			return p, err
		}
	}
	return port{}, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

// takeNumber takes one port. The error is errPortTaken when somebody has it.
func takeNumber(number int) (port, error) {
	dir := filepath.Join(os.TempDir(), "shardway-ports-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return port{}, err
	}
	lock, err := tryLockFile(filepath.Join(dir, strconv.Itoa(number)))
	if errors.Is(err, errLocked) {
		return port{}, fmt.Errorf("%w: %d", errPortTaken, number)
	}
	if err != nil {
		return port{}, err
	}
	l, err := net.Listen("tcp", loopback(number))
	if err != nil {
		lock.Close()
		return port{}, fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return port{number, lock}, l.Close()
}

func (p port) release() { p.lock.Close() }

func loopback(number int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(number)) }

// choosePort takes the port that the data in dir were served on before, or any free one: a replica
// set's configuration names its member's port.
func (f *Fleet) choosePort(dir string) (port, error) {
	text, err := os.ReadFile(filepath.Join(dir, portFile))
	if errors.Is(err, os.ErrNotExist) {
		return takePort()
	}
	if err != nil {
		return port{}, err
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return port{}, fmt.Errorf("%s: %w", filepath.Join(dir, portFile), err)
	}
	p, err := takeNumber(number)
	if err != nil && f.program.Kind != Mongod {
		return takePort() // SecantusDB's set moves with its port
	}
	return p, err
}

func savePort(dir string, p port) error {
	return os.WriteFile(filepath.Join(dir, portFile), []byte(strconv.Itoa(p.number)+"\n"), 0o644)
}
