package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// The clients that the proxy is shown with.
const (
	nodeDriver = "mongodb@7.9.0"
	shell      = "mongosh@2.12.0"
	pyDriver   = "pymongo==4.20.1"
)

const (
	installLimit = 5 * time.Minute
	scriptLimit  = 2 * time.Minute
)

// TestGoDriver uses the newest Go driver with default options.
func TestGoDriver(t *testing.T) {
	client := connect(t, sharedProxy(t).URI())
	ctx, db := t.Context(), "go_driver"
	command(t, client, "admin", shardCmd(db+".c", "k"))
	c := client.Database(db).Collection("c")
	t.Cleanup(func() { _ = client.Database(db).Drop(context.Background()) })

	docs := make([]any, 500)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "k", Value: fmt.Sprintf("k%d", i%50)}, {Key: "n", Value: i}}
	}
	if _, err := c.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	if n, err := c.CountDocuments(ctx, bson.D{}); err != nil || n != 500 {
		t.Errorf("count: %d, %v", n, err)
	}
	up, err := c.UpdateOne(ctx, bson.D{{Key: "k", Value: "k1"}, {Key: "n", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1000}}}})
	if err != nil || up.ModifiedCount != 1 {
		t.Errorf("update: %+v, %v", up, err)
	}
	del, err := c.DeleteOne(ctx, bson.D{{Key: "_id", Value: 499}})
	if err != nil || del.DeletedCount != 1 {
		t.Errorf("delete: %+v, %v", del, err)
	}
	cursor, err := c.Find(ctx, bson.D{}, options.Find().SetBatchSize(37))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int32]bool{}
	for cursor.Next(ctx) {
		seen[cursor.Current.Lookup("_id").Int32()] = true
	}
	if cursor.Err() != nil || len(seen) != 499 {
		t.Errorf("a cursor over several batches: %d, %v", len(seen), cursor.Err())
	}
	_, err = c.BulkWrite(ctx, []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: 600}, {Key: "k", Value: "b"}}),
		mongo.NewInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: 3}, {Key: "k", Value: "k3"}}),
		mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: 601}, {Key: "k", Value: "u"}}).SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 1}}}}).SetUpsert(true),
		mongo.NewInsertOneModel().SetDocument(bson.D{{Key: "_id", Value: 4}, {Key: "k", Value: "k4"}}),
	}, options.BulkWrite().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) {
		t.Fatalf("bulk: %v", err)
	}
	var got []string
	for _, e := range bulk.WriteErrors {
		got = append(got, fmt.Sprint(e.Index, " ", e.Code))
	}
	if text := strings.Join(got, ", "); text != "1 11000, 3 11000" {
		t.Errorf("bulk: %s", text)
	}
	if n, err := c.CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: bson.A{600, 601}}}}}); err != nil || n != 2 {
		t.Errorf("after the bulk write: %d, %v", n, err)
	}
}

func TestNodeDriver(t *testing.T) {
	dir := installNode(t, "node", nodeDriver)
	script(t, dir, "node", clientFile(t, "driver.mjs"), sharedProxy(t).URI())
}

func TestMongosh(t *testing.T) {
	dir := installNode(t, "mongosh", shell)
	out := script(t, dir, filepath.Join(dir, "node_modules", ".bin", "mongosh"), "--quiet", "--norc", sharedProxy(t).URI(), clientFile(t, "tour.js"))
	if !strings.Contains(out, "tour ok") {
		t.Errorf("the tour did not end:\n%s", out)
	}
	if strings.Contains(strings.ToLower(out), "warning") {
		t.Errorf("the shell warns:\n%s", out)
	}
}

func TestPythonDriver(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on PATH")
	}
	dir := clientDir(t, "python")
	venv := filepath.Join(dir, "venv")
	install(t, dir, pyDriver, python, "-m", "venv", venv)
	install(t, dir, pyDriver, filepath.Join(venv, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", pyDriver)
	script(t, dir, filepath.Join(venv, "bin", "python"), clientFile(t, "driver.py"), sharedProxy(t).URI())
}

// clientDir is where a client is installed: for one test, or for many where SHARDWAY_KEEP_CLIENTS names a directory.
func clientDir(t *testing.T, name string) string {
	t.Helper()
	keep := os.Getenv("SHARDWAY_KEEP_CLIENTS")
	if keep == "" {
		return t.TempDir()
	}
	dir, err := filepath.Abs(filepath.Join(keep, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func clientFile(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", "clients", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func installNode(t *testing.T, name, what string) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s on PATH", program)
		}
	}
	dir := clientDir(t, name)
	install(t, dir, what, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--loglevel=error", what)
	return dir
}

// install runs a package manager; where it cannot reach its registry the test is skipped with what it said.
func install(t *testing.T, dir, what, program string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), installLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("%s cannot be installed: %v\n%s", what, err, out)
	}
}

// script runs a client's script, which must exit with 0, and returns what it printed.
func script(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scriptLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", filepath.Base(program), err, out)
	}
	return string(out)
}
