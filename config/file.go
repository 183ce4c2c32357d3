package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// file is a config file's contents. The maps whose names are the user's are kept apart: viper folds
// names to lower case and takes dots for levels, and "Shop.Orders" must stay what it is.
type file struct {
	scalars     map[string]any
	backends    map[string]string
	collections map[string]Collection
}

// parse reads a YAML file; every key that is not one of ours is an error with its line.
func parse(text []byte) (file, error) {
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return file{}, nil
	} else if err != nil {
		return file{}, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return file{}, errors.New("more than one YAML document")
	}
	r := reader{known: map[string]key{}, file: file{scalars: map[string]any{}}}
	for _, k := range keys() {
		r.known[k.path] = k
	}
	r.section(doc.Content[0], "", r.file.scalars)
	return r.file, errors.Join(r.errs...)
}

// reader walks a file's tree.
type reader struct {
	known map[string]key
	file  file
	errs  []error
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("line %d: %w", n.Line, fmt.Errorf(format, args...)))
}

func (r *reader) section(n *yaml.Node, path string, into map[string]any) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // a section of which every key is commented out
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s must be a mapping of keys to values", orTop(path))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if seen[name.Value] {
			r.fail(name, "%s is given twice", path+name.Value)
		}
		seen[name.Value] = true
		r.entry(name, value, path, into)
	}
}

func (r *reader) entry(name, value *yaml.Node, path string, into map[string]any) {
	full := path + name.Value
	k, known := r.known[full]
	switch {
	case !known && r.isSection(full):
		below := map[string]any{}
		r.section(value, full+".", below)
		into[name.Value] = below
	case !known:
		r.unknown(name, path)
	case k.isMap():
		r.userMap(full, value)
	case value.Kind != yaml.ScalarNode:
		r.fail(value, "%s must be a single value", full)
	case value.Tag == "!!null":
		r.fail(value, "%s has no value", full)
	default:
		into[name.Value] = value.Value
	}
}

func (r *reader) isSection(path string) bool {
	for p := range r.known {
		if strings.HasPrefix(p, path+".") {
			return true
		}
	}
	return false
}

// unknown suggests a name of the same section, or else the same name in another section.
func (r *reader) unknown(name *yaml.Node, path string) {
	var siblings, all []string
	for p := range r.known {
		all = append(all, p)
		if rest, ok := strings.CutPrefix(p, path); ok {
			first, _, _ := strings.Cut(rest, ".")
			siblings = append(siblings, path+first)
		}
	}
	full := path + name.Value
	best := nearest(full, siblings)
	if best == "" {
		best = nearest(full, all)
	}
	for _, p := range all {
		if _, last, _ := strings.Cut(p, "."); best == "" && last == name.Value {
			best = p
		}
	}
	if best == "" {
		r.fail(name, "unknown key %s; configs/shardway.yaml shows all of them", full)
		return
	}
	r.fail(name, "unknown key %s; did you mean %s?", full, best)
}

func (r *reader) userMap(path string, n *yaml.Node) {
	var err error
	switch path {
	case "backends":
		err = n.Decode(&r.file.backends)
	default:
		if err = r.collectionKeys(n); err == nil {
			err = n.Decode(&r.file.collections)
		}
	}
	if err != nil {
		r.fail(n, "%s: %w", path, err)
	}
}

// collectionKeys checks the names in each declaration, which yaml's Decode would pass over.
func (r *reader) collectionKeys(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return nil // Decode says it better
	}
	names := []string{"key", "maxPartitionBytes", "partitions"}
	for i := 0; i+1 < len(n.Content); i += 2 {
		declaration := n.Content[i+1]
		for j := 0; j+1 < len(declaration.Content); j += 2 {
			name := declaration.Content[j].Value
			if near := nearest(name, names); near != name {
				return fmt.Errorf("line %d: unknown key %s in %s; did you mean %s?", declaration.Content[j].Line, name, n.Content[i].Value, orAny(near, names))
			}
		}
	}
	return nil
}

func orTop(path string) string {
	if path == "" {
		return "the file"
	}
	return strings.TrimSuffix(path, ".")
}

func orAny(name string, names []string) string {
	if name == "" {
		return "one of " + strings.Join(names, ", ")
	}
	return name
}
