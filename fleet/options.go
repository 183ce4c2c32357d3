package fleet

import (
	"io"
	"os"
)

// Options says how a fleet is made. The zero value is a fleet of replica sets of one, in a
// temporary directory, that trades durability under kill -9 for speed.
type Options struct {
	// Program is the server program: a path, or a name on PATH. Empty: the environment variable
	// SHARDWAY_SERVER, and then whatever [Find] finds or installs.
	Program string

	// Dir keeps the servers' data, a directory per server (backend1, backend2, …). Data that are
	// there already are served again. Empty: a temporary directory that [Fleet.Close] removes.
	Dir string

	// Standalone starts servers that are not replica sets: no change streams, no transactions, no
	// retryable writes.
	Standalone bool

	// SyncOnCommit makes every acknowledged write survive kill -9 on a stand-in server, at about
	// 1,000 single writes a second. A real mongod needs no such option and ignores it. Set it in
	// every test that kills servers.
	SyncOnCommit bool

	// Args are further arguments for the server program, after those of the fleet.
	Args []string

	// Log gets the fleet's own lines: what is being installed, which server is started again. The
	// servers' output goes to server.log in their directories. Nil: os.Stderr while something is
	// being installed, else nowhere.
	Log io.Writer

	// Front, if not nil, makes what stands between each server and those who connect to it, once the
	// server has started; nil for nothing. The fleet owns it.
	Front func(*Server) (Front, error)

	// FrontHas are features that servers have because of their fronts.
	FrontHas []Feature

	// QuickInstall prefers, where no server is found, the installation that takes seconds (the
	// Python wheel) to the one that takes minutes (building with cargo).
	QuickInstall bool
}

func (o Options) installLog() io.Writer {
	if o.Log != nil {
		return o.Log
	}
	return os.Stderr
}
