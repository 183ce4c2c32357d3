package fleet

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// arguments are the program's command line, by its make.
func (s *Server) arguments() []string {
	var args []string
	if s.program.Kind == Mongod {
		args = s.mongodArguments()
	} else {
		args = s.secantusArguments()
	}
	return append(args, s.options.Args...)
}

func (s *Server) mongodArguments() []string {
	args := []string{
		"--bind_ip", "127.0.0.1", "--port", strconv.Itoa(s.port.number), "--nounixsocket",
		"--dbpath", filepath.Join(s.dir, "data"), "--wiredTigerCacheSizeGB", "0.25",
		"--setParameter", "diagnosticDataCollectionEnabled=false",
		"--setParameter", "enableTestCommands=1",
	}
	if s.setName != "" {
		args = append(args, "--replSet", s.setName, "--oplogSize", "256")
	}
	if s.needsKey() {
		args = append(args, "--keyFile", s.keyPath())
	}
	return args
}

func (s *Server) secantusArguments() []string {
	args := []string{
		"--host", "127.0.0.1", "--port", strconv.Itoa(s.port.number),
		"--storage-path", filepath.Join(s.dir, "data"), "--cache-size", "128M",
		"--oplog-max-entries", "5000000", "--oplog-retention-seconds", "86400",
		"--noop-heartbeat-seconds", "5", "--log-level", "WARNING",
	}
	if s.program.Kind == SecantusRS {
		args = append(args, "--log-file-max", "4MB")
	}
	if s.setName == "" {
		args = append(args, "--standalone")
	}
	if s.options.SyncOnCommit {
		args = append(args, "--sync-on-commit")
	}
	return args
}

// awaitReady waits until the server answers hello as one that takes writes.
func (s *Server) awaitReady(ctx context.Context, r *run) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	initiated := false
	for {
		reply, err := Command(ctx, s.Direct(), bson.D{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}})
		if err == nil {
			if writable, _ := reply.Lookup("isWritablePrimary").BooleanOK(); writable {
				return nil
			}
			if _, inSet := reply.Lookup("setName").StringValueOK(); !inSet && s.setName != "" && !initiated {
				initiated = s.initiate(ctx)
			}
		}
		select {
		case <-r.exited:
			return ErrNotRunning
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// initiate makes a fresh mongod a replica set of one. A failure is not final: a mongod that is
// just loading its set's configuration refuses too, and the wait for a primary goes on.
func (s *Server) initiate(ctx context.Context) bool {
	config := bson.D{
		{Key: "_id", Value: s.setName},
		{Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: s.Direct()}}}},
	}
	_, err := Command(ctx, s.Direct(), bson.D{{Key: "replSetInitiate", Value: config}, {Key: "$db", Value: "admin"}})
	return err == nil
}
