package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

var rewrite = flag.Bool("rewrite", false, "write configs/shardway.yaml anew from the struct; read the diff")

const example = "../configs/shardway.yaml"

// TestExampleShowsEveryKey holds configs/shardway.yaml to the struct: every key, its help and its
// default. What has no default is shown by an example.
func TestExampleShowsEveryKey(t *testing.T) {
	want := annotated()
	if *rewrite {
		if err := os.WriteFile(example, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not in step with the struct; run go test ./config -rewrite and read the diff", example)
	}
	c, err := Load(example, flags(t))
	if err != nil {
		t.Fatal(err)
	}
	def := Default()
	def.Backends = map[string]string{"a": "mongodb://a1.example:27017/?replicaSet=a", "b": "mongodb://b1.example:27017,b2.example:27017/?replicaSet=b"}
	def.Collections = map[string]Collection{"shop.orders": {Key: "customer.id", MaxPartitionBytes: 10 << 30, Partitions: 8}}
	def.Catalog = "a"
	if !reflect.DeepEqual(c, def) {
		t.Errorf("the example loads as\n%+v, want\n%+v", c, def)
	}
}

// annotated is the example file.
func annotated() string {
	var b strings.Builder
	b.WriteString("# What Shardway can be told, with the defaults. Each key is an environment variable (SHARDWAY_LOG_LEVEL)\n" +
		"# and a flag (--log-level) too: flags win over the environment, the environment over this file.\n")
	def := reflect.ValueOf(Default())
	section := ""
	for _, k := range keys() {
		name, indent := k.path, ""
		if above, last, ok := strings.Cut(k.path, "."); ok {
			if above != section {
				fmt.Fprintf(&b, "\n%s:\n", above)
				section = above
			} else {
				b.WriteString("\n")
			}
			name, indent = last, "  "
		} else {
			b.WriteString("\n")
		}
		for _, line := range wrap(k.help) {
			fmt.Fprintf(&b, "%s# %s\n", indent, line)
		}
		fmt.Fprintf(&b, "%s%s:%s\n", indent, name, shown(k, def.FieldByIndex(k.index)))
	}
	return b.String()
}

// shown is a value as YAML, after the colon.
func shown(k key, v reflect.Value) string {
	switch k.path {
	case "catalog":
		return " a"
	case "backends":
		return "\n  a: mongodb://a1.example:27017/?replicaSet=a\n  b: mongodb://b1.example:27017,b2.example:27017/?replicaSet=b"
	case "collections":
		return "\n  shop.orders:\n    key: customer.id # the field that places a document; it is hashed\n" +
			"    maxPartitionBytes: 10GB # for this collection\n    partitions: 8 # when it is made empty; 0: one a backend"
	}
	if k.typ.Kind() == reflect.String {
		return fmt.Sprintf(" %q", v.String())
	}
	return fmt.Sprintf(" %v", v.Interface())
}

func wrap(text string) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case len(*last)+len(word) > 100:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return lines
}

func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Flags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shardway.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const fine = "backends:\n  a: mongodb://127.0.0.1:1/\n"

func TestFlagWinsOverEnvironmentOverFile(t *testing.T) {
	path := write(t, fine+"log: {level: error, format: text}\nreshape:\n  lease: 20s\nmaxPartitionBytes: 64KB\n")
	t.Setenv("SHARDWAY_LOG_LEVEL", "warn")
	t.Setenv("SHARDWAY_LISTEN", "127.0.0.1:2")
	t.Setenv("SHARDWAY_RESHAPE_LEASE_RENEW", "3s")
	t.Setenv("SHARDWAY_POOL_MAX_CONNS", "7")
	c, err := Load(path, flags(t, "--log-level=debug", "--max-partition-bytes=1.5MB"))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Backends = map[string]string{"a": "mongodb://127.0.0.1:1/"}
	want.Log.Level, want.Log.Format, want.Listen = "debug", "text", "127.0.0.1:2"
	want.Reshape.Lease, want.Reshape.LeaseRenew, want.Pool.MaxConns, want.MaxPartitionBytes = 20*time.Second, 3*time.Second, 7, 3<<19
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got\n%+v, want\n%+v", c, want)
	}
}

func TestBackendsAndCollectionsFromFlagsAndEnvironment(t *testing.T) {
	t.Setenv("SHARDWAY_BACKENDS", "x=mongodb://h1:1,h2:2/?replicaSet=r y=mongodb://h3/")
	c, err := Load(write(t, fine), flags(t, "--collection=Shop.Orders.old=customer.id"))
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"x": "mongodb://h1:1,h2:2/?replicaSet=r", "y": "mongodb://h3/"}; !reflect.DeepEqual(c.Backends, want) {
		t.Errorf("backends %v, want %v", c.Backends, want)
	}
	if want := map[string]Collection{"Shop.Orders.old": {Key: "customer.id"}}; !reflect.DeepEqual(c.Collections, want) {
		t.Errorf("collections %v, want %v", c.Collections, want)
	}
	if c, err = Load("", flags(t, "--backend=a=mongodb://h/", "--backend=b=mongodb://h2/?w=1")); err != nil || c.Backends["b"] != "mongodb://h2/?w=1" || len(c.Backends) != 2 {
		t.Errorf("flags give %v, %v", c.Backends, err)
	}
}

func TestNamesKeepTheirCase(t *testing.T) {
	c, err := Load(write(t, "backends: {EU-1: \"mongodb://h/\"}\ncollections:\n  Shop.Orders: {key: Customer.ID}\n"), flags(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.Backends["EU-1"] == "" || c.Collections["Shop.Orders"].Key != "Customer.ID" {
		t.Errorf("got %+v", c)
	}
}

// TestRefused states, one by one, what is wrong with a file and what the operator is told.
func TestRefused(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"unknown key", fine + "lisen: x:1\n", "line 3: unknown key lisen; did you mean listen?"},
		{"unknown key in a section", fine + "reshape:\n  leaseRenwe: 2s\n", "line 4: unknown key reshape.leaseRenwe; did you mean reshape.leaseRenew?"},
		{"key of another section", fine + "slowRequest: 1s\n", "did you mean log.slowRequest?"},
		{"unknown section", fine + "reshap:\n  lease: 2s\n", "unknown key reshap; did you mean reshape?"},
		{"wrong case", fine + "maxpartitionbytes: 1MB\n", "did you mean maxPartitionBytes?"},
		{"unlike any key", fine + "zzzzzzzzzzz: 1\n", "unknown key zzzzzzzzzzz; configs/shardway.yaml"},
		{"unknown key of a collection", fine + "collections:\n  a.b: {keys: x}\n", "unknown key keys in a.b; did you mean key?"},
		{"twice", fine + "listen: h:1\nlisten: h:2\n", "listen"},
		{"two documents", fine + "---\nlisten: h:1\n", "more than one YAML document"},
		{"a list", "- a\n", "the file must be a mapping"},
		{"scalar for a section", fine + "log: debug\n", "log must be a mapping"},
		{"list for a scalar", fine + "listen: [h:1]\n", "listen must be a single value"},
		{"no value", fine + "listen:\n", "listen has no value"},
		{"duration without unit", fine + "reshape: {lease: 10}\n", `reshape.lease: "10" is not a duration`},
		{"not bytes", fine + "maxPartitionBytes: 5 apples\n", "maxPartitionBytes"},
		{"not a number", fine + "pool: {maxConns: many}\n", "pool.maxConns"},
		{"not a bool", fine + "tls: {requireClientCert: perhaps}\n", "tls.requireClientCert"},
		{"no backends", "listen: h:1\n", "backends: none is given"},
		{"bad uri", "backends: {a: \"http://h\"}\n", "backends.a: not a connection string"},
		{"bad listen", fine + "listen: here\n", `listen: "here" is not HOST:PORT`},
		{"unknown catalog", fine + "catalog: b\n", `catalog: "b" is neither a backend's id (a)`},
		{"zero partition", fine + "maxPartitionBytes: 0\n", "at least 1 byte"},
		{"namespace without a dot", fine + "collections: {people: {key: a}}\n", "collections.people: a collection is named DATABASE.COLLECTION"},
		{"no key", fine + "collections: {a.b: {}}\n", "collections.a.b.key: is missing"},
		{"bad path", fine + "collections: {a.b: {key: a..b}}\n", `"a..b" is not a field's path`},
		{"log level", fine + "log: {level: loud}\n", `"loud" is not one of`},
		{"log format", fine + "log: {format: xml}\n", `"xml" is neither`},
		{"certificate without key", fine + "tls: {certFile: /nonexistent/c}\n", "certFile and keyFile need each other"},
		{"missing file", fine + "backendTLS: {caFile: /nonexistent/ca}\n", "backendTLS.caFile"},
		{"no room in a lease", fine + "reshape: {lease: 4s}\n", "leaves no room for a lost renewal"},
		{"negative", fine + "reshape: {drainLimit: -1s}\n", "reshape.drainLimit: -1s is too short"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(write(t, c.text), flags(t))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestErrorsShowNoPassword(t *testing.T) {
	_, err := Load("", flags(t, "--backend=a=mongodb://user:s3cret@h:x/"))
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, err := Load(write(t, fine+"log: {level: loud, format: xml}\n"), flags(t))
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("got %v, want both problems", err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), flags(t)); err == nil {
		t.Error("a file that is not there loads")
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "17": 17, "17B": 17, "64KB": 64 << 10, "1.5 MB": 3 << 19, "50gb": 50 << 30, "2TB": 2 << 40, "8388607TB": 8388607 << 40} {
		got, err := ParseBytes(text)
		if err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", text, got, err, want)
		}
		if again, err := ParseBytes(got.String()); err != nil || again != got {
			t.Errorf("%q reads back as %d, %v, want %d", got, again, err, got)
		}
	}
	for _, text := range []string{"", "MB", "-1", "1XB", "NaN", "Inf", "8388608TB", "1e30"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d", text, got)
		}
	}
}

func TestFlagAndEnvironmentNames(t *testing.T) {
	for path, want := range map[string][2]string{
		"listen": {"listen", "SHARDWAY_LISTEN"}, "maxPartitionBytes": {"max-partition-bytes", "SHARDWAY_MAX_PARTITION_BYTES"},
		"backends": {"backend", "SHARDWAY_BACKENDS"}, "backendTLS.caFile": {"backend-tls-ca-file", "SHARDWAY_BACKEND_TLS_CA_FILE"},
		"tls.requireClientCert": {"tls-require-client-cert", "SHARDWAY_TLS_REQUIRE_CLIENT_CERT"},
	} {
		found := false
		for _, k := range keys() {
			if k.path == path {
				found = true
				if k.flagName() != want[0] || k.envName() != want[1] {
					t.Errorf("%s: --%s, %s, want --%s, %s", path, k.flagName(), k.envName(), want[0], want[1])
				}
			}
		}
		if !found {
			t.Errorf("no key %s", path)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(fine))
	f.Add([]byte(annotated()))
	f.Add([]byte("a: &x [*x]\n"))
	f.Add([]byte("collections: {a: {b: c}}\nbackends: [1]\nlog:\n"))
	f.Fuzz(func(t *testing.T, text []byte) { _, _ = parse(text) }) // must not panic
}
