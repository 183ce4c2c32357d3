package fleet_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
)

// envParent makes the test binary a parent that starts a fleet, says so and waits to be killed.
const envParent = "SHARDWAY_TEST_FLEET_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(envParent) != "" {
		parent()
	}
	os.Exit(fleettest.Main(m))
}

func parent() {
	f, err := fleet.Start(context.Background(), 1, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(f.Servers[0].PID(), f.Dir())
	select {}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func insert(t *testing.T, s *fleet.Server, id int) {
	t.Helper()
	reply, err := s.Command(within(t), bson.D{{Key: "insert", Value: "c"}, {Key: "$db", Value: "test"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}}})
	if n, _ := reply.Lookup("n").AsInt64OK(); err != nil || n != 1 {
		t.Fatalf("insert %d: %v, %v", id, reply, err)
	}
}

func count(t *testing.T, s *fleet.Server) int64 {
	t.Helper()
	reply, err := s.Command(within(t), bson.D{{Key: "count", Value: "c"}, {Key: "$db", Value: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	return reply.Lookup("n").AsInt64()
}

func TestKillAndRestartKeepsAcknowledgedWrites(t *testing.T) {
	f := fleettest.Start(t, 2, fleettest.Durable)
	s := f.Servers[1]
	addr, pid := s.Addr(), s.PID()
	insert(t, s, 1)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if s.Running() {
		t.Error("running after Kill")
	}
	if _, err := s.Command(within(t), bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}); err == nil {
		t.Error("a killed server answers")
	}
	if err := s.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	if s.Addr() != addr || s.PID() == pid {
		t.Errorf("restarted as %s pid %d, was %s pid %d", s.Addr(), s.PID(), addr, pid)
	}
	if n := count(t, s); n != 1 {
		t.Errorf("%d documents after kill and restart, want 1", n)
	}
	if n := count(t, f.Servers[0]); n != 0 {
		t.Errorf("the other server has %d documents", n)
	}
}

func TestFreezeAndThaw(t *testing.T) {
	s := fleettest.Start(t, 1).Servers[0]
	ping := bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Command(short, ping); err == nil {
		t.Error("a frozen server answers")
	}
	if err := s.Thaw(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Command(within(t), ping); err != nil {
		t.Error(err)
	}
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(within(t)); err != nil {
		t.Errorf("stopping a frozen server: %v", err)
	}
	if err := s.Freeze(); !errors.Is(err, fleet.ErrNotRunning) {
		t.Errorf("freezing a dead server: %v", err)
	}
}

func TestStandaloneAndSetDifferInHello(t *testing.T) {
	hello := bson.D{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}}
	alone := fleettest.Start(t, 1, fleettest.Standalone)
	reply, err := alone.Servers[0].Command(within(t), hello)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reply.LookupErr("setName"); err == nil || alone.Has(fleet.ReplicaSet) {
		t.Errorf("a standalone says %v", reply)
	}
	member := fleettest.Shared(t, 1)[0]
	if reply, err = member.Command(within(t), hello); err != nil {
		t.Fatal(err)
	}
	if got := reply.Lookup("setName").StringValue(); got != member.SetName() {
		t.Errorf("set name %q, want %q", got, member.SetName())
	}
	if !strings.Contains(member.URI(), "replicaSet="+member.SetName()) {
		t.Errorf("uri %s", member.URI())
	}
}

func TestDirIsKeptAndNotShared(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	program, err := fleet.Find(within(t), fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := fleet.Options{Dir: dir, Program: program.Path}
	f, err := fleet.Start(within(t), 1, o)
	if err != nil {
		t.Fatal(err)
	}
	insert(t, f.Servers[0], 1)
	addr := f.Servers[0].Addr()
	if second, err := fleet.Start(within(t), 1, o); err == nil {
		second.Close()
		t.Error("two fleets in one directory")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err = fleet.Start(within(t), 1, o); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Servers[0].Addr() != addr {
		t.Errorf("served on %s again, was %s", f.Servers[0].Addr(), addr)
	}
	if n := count(t, f.Servers[0]); n != 1 {
		t.Errorf("%d documents, want 1", n)
	}
}

func TestProgramThatEndsAtOnceIsAnError(t *testing.T) {
	program := filepath.Join(t.TempDir(), "secantusd-rs")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho no such luck\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := fleet.Start(within(t), 1, fleet.Options{Program: program})
	if err == nil {
		f.Close()
		t.Fatal("started")
	}
	if !errors.Is(err, fleet.ErrNotRunning) || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("the error does not show the log: %v", err)
	}
	if _, err := fleet.Find(within(t), fleet.Options{Program: "/bin/sh"}); err == nil {
		t.Error("/bin/sh taken for a database server")
	}
}

// TestChildrenDieWithTheirParent kills a process that has a fleet and looks for its server; then it
// starts a fleet of its own, which clears up what the dead one left.
func TestChildrenDieWithTheirParent(t *testing.T) {
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("only Linux ends children with a killed parent")
	}
	fleettest.Shared(t, 1) // the parent's time limit must not cover an installation
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envParent+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	cmd.Process.Kill()
	cmd.Wait()
	pidText, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
	pid, err := strconv.Atoi(pidText)
	if err != nil || !ok {
		t.Fatalf("the parent said %q", line)
	}
	for ctx := within(t); running(pid); {
		select {
		case <-ctx.Done():
			t.Fatal("the server outlives its parent")
		case <-time.After(10 * time.Millisecond):
		}
	}
	fleettest.Start(t, 0)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

// running is false for zombies too: whoever adopts an orphan need not reap it soon.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestSharedGrows(t *testing.T) {
	one, two := fleettest.Shared(t, 1), fleettest.Shared(t, 2)
	if one[0] != two[0] || two[0].Addr() == two[1].Addr() {
		t.Errorf("shared fleets %v and %v", one, two)
	}
	if a, b := fleettest.DB(t), fleettest.DB(t); a == b || len(a) > 63 {
		t.Errorf("database names %q and %q", a, b)
	}
}
