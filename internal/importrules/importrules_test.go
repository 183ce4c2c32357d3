package importrules

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/shardway/shardway/"

// mayImport says, for each top-level package, which others its code may import; itself and what lies
// below it are understood. Tests are free: they may start servers. A package that is not listed is
// an error, so that whoever adds one decides where it stands.
var mayImport = map[string][]string{
	"wire":      {},
	"shardkey":  {"wire"},
	"catalog":   {"shardkey", "wire"},
	"partition": {"shardkey", "catalog"},
	"backend":   {"wire"},
	"protocol":  {"catalog", "partition", "shardkey"},
	"member":    {"protocol", "catalog", "partition", "backend", "shardkey", "wire"},
	"splitter":  {"member", "protocol", "catalog", "partition", "backend", "shardkey", "wire"},
	"router":    {"splitter", "member", "protocol", "catalog", "partition", "backend", "shardkey", "wire"},
	"admin":     {"router", "splitter", "member", "protocol", "catalog", "partition", "backend", "shardkey", "wire"},
	"config":    {},
	// The relay that puts a mongod's rules in front of the stand-in server reads and writes messages as the product does.
	"fleet":    {"wire"},
	"internal": {},
	// What stands outside the flow may use all of it.
	"cmd":         {"admin", "router", "splitter", "member", "protocol", "catalog", "partition", "backend", "shardkey", "wire", "config", "fleet"},
	"integration": {"admin", "router", "splitter", "member", "protocol", "catalog", "partition", "backend", "shardkey", "wire", "config", "fleet"},
	"bench":       {"admin", "router", "splitter", "member", "protocol", "catalog", "partition", "backend", "shardkey", "wire", "config", "fleet"},
}

// pure packages know no sockets and no driver but its BSON.
var pure = []string{"wire", "shardkey"}

func TestDataFlowsOneWay(t *testing.T) {
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		rel, err := filepath.Rel("../..", path)
		if err != nil {
			return err
		}
		for _, problem := range check(t, path, filepath.ToSlash(rel)) {
			t.Errorf("%s: %s", rel, problem)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Errorf("only %d files were looked at", files)
	}
}

func check(t *testing.T, path, rel string) []string {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var imports []string
	for _, spec := range f.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		imports = append(imports, name)
	}
	return problems(rel, imports)
}

// problems lists what a file at rel may not import.
func problems(rel string, imports []string) []string {
	from, _, inPackage := strings.Cut(rel, "/")
	if !inPackage {
		from = "" // the module's root imports nothing
	}
	allowed, known := mayImport[from]
	if !known && inPackage {
		return []string{"package " + from + " is not listed in internal/importrules"}
	}
	var found []string
	for _, name := range imports {
		if ours, ok := strings.CutPrefix(name, module); ok {
			to, _, _ := strings.Cut(ours, "/")
			if to != from && !slices.Contains(allowed, to) {
				found = append(found, from+" may not import "+ours)
			}
		}
		if slices.Contains(pure, from) && strings.Contains(name, "mongo-driver") && !strings.Contains(name, "/bson") {
			found = append(found, from+" may import nothing of the driver but BSON, not "+name)
		}
	}
	return found
}

// TestProblems shows that the rules can be broken.
func TestProblems(t *testing.T) {
	cases := []struct {
		rel, imports string
		bad          bool
	}{
		{"wire/msg.go", module + "shardkey", true},
		{"wire/msg.go", "go.mongodb.org/mongo-driver/v2/mongo", true},
		{"wire/msg.go", "go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore", false},
		{"splitter/split.go", module + "router", true},
		{"router/conn.go", module + "splitter", false},
		{"router/conn.go", module + "fleet", true},
		{"router/internal/x/y.go", module + "router/internal/z", false},
		{"fleet/rules/conn.go", module + "wire", false},
		{"fleet/fleet.go", module + "backend", true},
		{"cmd/proxy/main.go", module + "fleet", false},
		{"newcomer/a.go", "fmt", true},
		{"doc.go", module + "wire", true},
	}
	for _, c := range cases {
		if got := problems(c.rel, []string{c.imports}); (len(got) > 0) != c.bad {
			t.Errorf("%s importing %s: %v", c.rel, c.imports, got)
		}
	}
}
