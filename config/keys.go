package config

import (
	"reflect"
	"strings"
	"time"
	"unicode"
)

// key is one thing that can be set.
type key struct {
	path  string // dotted, as in the file: "log.level"
	help  string
	index []int // of the field, for reflect's FieldByIndex
	typ   reflect.Type
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[Bytes]()
)

// keys lists every key of Config in the struct's order; sections are not keys, maps are.
func keys() []key { return keysOf(reflect.TypeFor[Config](), "", nil) }

func keysOf(t reflect.Type, prefix string, index []int) []key {
	var all []key
	for i := range t.NumField() {
		f := t.Field(i)
		path := prefix + f.Tag.Get("key")
		at := append(index[:len(index):len(index)], i)
		if f.Type.Kind() == reflect.Struct {
			all = append(all, keysOf(f.Type, path+".", at)...)
			continue
		}
		all = append(all, key{path: path, help: f.Tag.Get("help"), index: at, typ: f.Type})
	}
	return all
}

// isMap tells the keys whose names below are the user's own.
func (k key) isMap() bool { return k.typ.Kind() == reflect.Map }

// flagName is the key's flag. A map's flag names one entry and may be repeated: --backend.
func (k key) flagName() string {
	name := join(k.path, '-')
	if k.isMap() {
		name = strings.TrimSuffix(name, "s")
	}
	return name
}

// envName is the key's environment variable.
func (k key) envName() string { return envPrefix + strings.ToUpper(join(k.path, '_')) }

// join writes a path's words in lower case: "backendTLS.caFile" is backend-tls-ca-file.
func join(path string, sep rune) string {
	var b strings.Builder
	runes := []rune(path)
	for i, r := range runes {
		if r == '.' {
			b.WriteRune(sep)
			continue
		}
		if unicode.IsUpper(r) && i > 0 && unicode.IsLower(runes[i-1]) {
			b.WriteRune(sep) // a word begins
		} else if unicode.IsUpper(r) && i > 0 && i+1 < len(runes) && unicode.IsUpper(runes[i-1]) && unicode.IsLower(runes[i+1]) {
			b.WriteRune(sep) // the last capital of an abbreviation begins the next word
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// nearest is the candidate with the fewest edits from name, or "" when none is near.
func nearest(name string, candidates []string) string {
	best, bestDistance := "", len(name)/2+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
