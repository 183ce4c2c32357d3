package commands_test

import (
	"flag"
	"os"
	"testing"

	"github.com/shardway/shardway/backend/admission"
	"github.com/shardway/shardway/backend/commands"
)

var rewrite = flag.Bool("rewrite", false, "write docs/backends.md anew from the table; read the diff")

// The page that people read is made of the table.
func TestPageIsInStepWithTheTable(t *testing.T) {
	const page = "../../docs/backends.md"
	want := commands.Page(admission.Supported)
	if *rewrite {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not in step with the table; run go test ./backend/commands -rewrite and read the diff", page)
	}
}
