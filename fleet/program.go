package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// EnvServer names the environment variable that holds the path of the server program to use.
const EnvServer = "SHARDWAY_SERVER"

// Kind is the make of a server program; it decides the arguments and the features.
type Kind string

// The makes of server that a fleet can run.
const (
	Mongod      Kind = "mongod"
	SecantusRS  Kind = "secantusd-rs"
	SecantusPy  Kind = "secantusd-py"
	unknownKind Kind = ""
)

// Program is a server program found on this machine.
type Program struct {
	Path string // absolute
	Kind Kind
}

// ErrNoServer means that no server program was found and none could be installed. The error's text
// says what would help.
var ErrNoServer = errors.New("no database server")

// Find looks for a server program and installs one where there is none: Options.Program, the
// environment variable SHARDWAY_SERVER, mongod on PATH, secantusd-rs on PATH or in the user's cache
// directory, then cargo, then the Python wheel (with QuickInstall the wheel first). Building takes
// minutes and is written to Options.Log as it goes; several processes that need it build once.
func Find(ctx context.Context, o Options) (Program, error) {
	name := o.Program
	if name == "" {
		name = os.Getenv(EnvServer)
	}
	if name != "" {
		return named(ctx, name)
	}
	for _, kind := range []Kind{Mongod, SecantusRS} {
		if path, err := exec.LookPath(string(kind)); err == nil {
			return absolute(path, kind)
		}
	}
	return install(ctx, o)
}

// named resolves a program that the user asked for; its make shows in its name or in its version.
func named(ctx context.Context, name string) (Program, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return Program{}, fmt.Errorf("server program %q: %w", name, err)
	}
	kind := kindOf(filepath.Base(path))
	if kind == unknownKind {
		out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
		if err != nil {
			return Program{}, fmt.Errorf("server program %q: --version: %w", name, err)
		}
		kind = kindOf(string(out))
	}
	if kind == unknownKind {
		return Program{}, fmt.Errorf("server program %q is neither mongod nor SecantusDB", name)
	}
	return absolute(path, kind)
}

func absolute(path string, kind Kind) (Program, error) {
	abs, err := filepath.Abs(path)
	return Program{Path: abs, Kind: kind}, err
}

// kindOf reads the make from a file name or from the output of --version.
func kindOf(text string) Kind {
	switch {
	case strings.Contains(text, "secantusd-py"), strings.Contains(text, "secantusd-python"):
		return SecantusPy
	case strings.Contains(text, "secantus"):
		return SecantusRS
	case strings.HasPrefix(text, "mongod"), strings.Contains(text, "db version v"):
		return Mongod
	}
	return unknownKind
}
