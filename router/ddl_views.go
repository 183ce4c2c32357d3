package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// viewsFor is how long the definitions of a database's views are believed. They change through this proxy, which forgets them
// then; another proxy's change is seen after this time.
const viewsFor = 10 * time.Second

// viewCache remembers which views the databases have on each backend, and what they are.
type viewCache struct {
	mu  sync.Mutex
	dbs map[viewsAt]*dbViews
}

type viewsAt struct{ db, backend string }

// viewDef is a view's definition. Immutable.
type viewDef struct {
	on       string
	pipeline []bson.Raw
	// collation is nil for the simple one.
	collation bson.Raw
	// reads are the namespaces that on and the pipeline name.
	reads []string
}

// dbViews are the views of one database on one backend, by physical name. Immutable.
type dbViews struct {
	read time.Time
	defs map[string]*viewDef
	// versions are those of the maps of unsharded namespaces that were known when it was read: what came later may be a view.
	versions map[string]int64
}

// forget drops what is known of a database's views.
func (v *viewCache) forget(db string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for at := range v.dbs {
		if at.db == db {
			delete(v.dbs, at)
		}
	}
}

// get returns what is known of a database's views on a backend, nil when that is nothing. When it has become old one
// caller is told so, and the others go on with it meanwhile.
func (v *viewCache) get(at viewsAt) (d *dbViews, old bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d = v.dbs[at]
	if d != nil && time.Since(d.read) >= viewsFor {
		v.dbs[at] = &dbViews{read: time.Now(), defs: d.defs, versions: d.versions}
		return d, true
	}
	return d, false
}

func (v *viewCache) put(at viewsAt, d *dbViews) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.dbs == nil {
		v.dbs = map[viewsAt]*dbViews{}
	}
	v.dbs[at] = d
}

// viewError says that a namespace is a view whose backend cannot read by itself what the view reads: that has a map, and other names there. Reads
// that can be put as an aggregate answer it by reading through the view; for all others it is 115.
type viewError struct {
	ns  string
	def *viewDef
}

func (e *viewError) Error() string { return e.Unwrap().Error() }

func (e *viewError) Unwrap() error {
	return wire.Errorf(wire.CommandNotSupported, "'%s' is a view on a collection that is sharded, or was dropped, renamed or moved before: find, aggregate, count and distinct read it, other commands and stages of pipelines do not", e.ns)
}

// checkView returns a viewError for a view that has a map or reads a namespace with one. Other views, and collections, pass; the check costs
// nothing while no namespace has a map.
func (r *Router) checkView(ctx context.Context, c *partition.Collection) error {
	if c == nil || c.Sharded() || len(c.Parts) != 1 {
		return nil
	}
	view := r.cfg.Table.View()
	if len(view.Catalog.Maps) == 0 {
		return nil
	}
	views, err := r.viewsOf(ctx, c)
	if err != nil {
		return err
	}
	def := views.defs[c.Parts[0].Physical]
	if def == nil || c.Map == nil && views.mapped(view, c.DB, def.reads, 0) == "" {
		return nil
	}
	return &viewError{ns: c.NS, def: def}
}

// mapped returns a namespace with a map that reading the given ones touches, views followed; "" when there is none.
func (d *dbViews) mapped(view *partition.View, db string, reads []string, depth int) string {
	const deepest = 20 // mongod's limit of nested views
	for _, ns := range reads {
		if view.Catalog.Maps[ns] != nil {
			return ns
		}
		inDB, coll := catalog.SplitNS(ns)
		def := d.defs[coll]
		if inDB != db || depth >= deepest || def == nil {
			continue
		}
		if ns := d.mapped(view, db, def.reads, depth+1); ns != "" {
			return ns
		}
	}
	return ""
}

// viewsOf returns the views of c's database on c's backend, asking it when they are not known. It knows whether c is one.
func (r *Router) viewsOf(ctx context.Context, c *partition.Collection) (*dbViews, error) {
	at := viewsAt{c.DB, c.Parts[0].Backend}
	known, old := r.views.get(at)
	if known != nil && c.Map != nil && known.versions[c.Name] < c.Map.V {
		known = nil
	}
	if known != nil && !old {
		return known, nil
	}
	d := &dbViews{read: time.Now(), defs: map[string]*viewDef{}, versions: map[string]int64{}}
	for m := range r.cfg.Table.View().Mapped {
		if m.DB == c.DB && !m.Sharded() {
			d.versions[m.Name] = m.Map.V
		}
	}
	infos, err := r.askAll(ctx, at.backend, c.DB, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "type", Value: "view"}}}, {Key: "cursor", Value: bson.D{}}})
	if err != nil && known != nil {
		return known, nil // without a primary, secondaries can be read all the same
	}
	if err != nil {
		return nil, err
	}
	for _, info := range infos {
		options, ok := info.Lookup("options").DocumentOK()
		if !ok {
			continue
		}
		if d.defs[info.Lookup("name").StringValue()], err = parseViewDef(c.DB, options); err != nil {
			return nil, err
		}
	}
	r.views.put(at, d)
	return d, nil
}

// parseViewDef reads a view's options: viewOn, pipeline and collation.
func parseViewDef(db string, options bson.Raw) (*viewDef, error) {
	def := &viewDef{reads: readsOf(db, options)}
	def.on, _ = options.Lookup("viewOn").StringValueOK()
	if v, err := bsoncore.Document(options).LookupErr("pipeline"); err == nil {
		if def.pipeline, err = parsePipeline(v); err != nil {
			return nil, err
		}
	}
	if v, err := bsoncore.Document(options).LookupErr("collation"); err == nil {
		if special, err := notSimple(v); err == nil && special {
			def.collation = bson.Raw(v.Document())
		}
	}
	return def, nil
}

// readsOf lists the namespaces that a view's definition (viewOn and pipeline) names.
func readsOf(db string, options bson.Raw) []string {
	var reads []string
	if on, ok := options.Lookup("viewOn").StringValueOK(); ok {
		reads = append(reads, db+"."+on)
	}
	if pipeline, ok := options.Lookup("pipeline").ArrayOK(); ok {
		reads = append(reads, pipelineReads(db, pipeline, 0)...)
	}
	return reads
}

// pipelineReads lists the namespaces that a pipeline's stages name, in sub-pipelines too.
func pipelineReads(db string, pipeline bson.RawArray, depth int) []string {
	const deepest = 100
	values, err := pipeline.Values()
	if err != nil || depth > deepest {
		return nil
	}
	var reads []string
	for _, v := range values {
		stage, ok := v.DocumentOK()
		if !ok {
			continue
		}
		elems, err := stage.Elements()
		if err != nil || len(elems) == 0 {
			continue
		}
		reads = append(reads, stageReads(db, elems[0].Key(), elems[0].Value(), depth)...)
	}
	return reads
}

func stageReads(db, name string, arg bson.RawValue, depth int) []string {
	var reads []string
	add := func(v bson.RawValue) {
		if s, ok := v.StringValueOK(); ok {
			reads = append(reads, db+"."+s)
		} else if d, ok := v.DocumentOK(); ok { // {db, coll}
			other, _ := d.Lookup("db").StringValueOK()
			if coll, ok := d.Lookup("coll").StringValueOK(); ok {
				reads = append(reads, other+"."+coll)
			}
		}
	}
	doc, isDoc := arg.DocumentOK()
	switch {
	case name == "$unionWith" && !isDoc:
		add(arg)
	case !isDoc:
	case name == "$lookup" || name == "$graphLookup":
		add(doc.Lookup("from"))
	case name == "$unionWith":
		add(doc.Lookup("coll"))
	case name == "$facet":
		elems, _ := doc.Elements()
		for _, e := range elems {
			if sub, ok := e.Value().ArrayOK(); ok {
				reads = append(reads, pipelineReads(db, sub, depth+1)...)
			}
		}
	}
	if isDoc {
		if sub, ok := doc.Lookup("pipeline").ArrayOK(); ok {
			reads = append(reads, pipelineReads(db, sub, depth+1)...)
		}
	}
	return reads
}

// readsMapped reports whether a view with those options would read what has a map.
func (r *Router) readsMapped(ctx context.Context, c *partition.Collection, options bson.Raw) (bool, error) {
	reads := readsOf(c.DB, options)
	view := r.cfg.Table.View()
	d := view.Catalog.Databases[c.DB]
	if d == nil || len(reads) == 0 || len(view.Catalog.Maps) == 0 {
		return false, nil
	}
	views, err := r.viewsOf(ctx, &partition.Collection{DB: c.DB, Name: c.Name, Parts: []*partition.Part{{Home: partition.Home{Backend: d.Primary}}}})
	if err != nil {
		return false, err
	}
	return views.mapped(view, c.DB, reads, 0) != "", nil
}

// describe returns a physical collection's entry of listCollections, nil when there is none.
func (r *Router) describe(ctx context.Context, h partition.Home) (bson.Raw, error) {
	infos, err := r.askAll(ctx, h.Backend, h.DB, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "name", Value: h.Physical}}}, {Key: "cursor", Value: bson.D{}}})
	if err != nil || len(infos) == 0 {
		return nil, err
	}
	return infos[0], nil
}

func typeOf(info bson.Raw) string {
	s, _ := info.Lookup("type").StringValueOK()
	return s
}

// exists looks a namespace up: its entry of listCollections, nil when it does not exist.
func (r *Router) exists(ctx context.Context, ns string) (info bson.Raw, err error) {
	err = r.withinAny(ctx, ns, partition.Read, allParts, func(c *partition.Collection, parts []*partition.Part) error {
		if len(parts) == 0 {
			return nil
		}
		info, err = r.describe(ctx, parts[0].Home)
		return err
	})
	if errors.Is(err, errUnknownDB) {
		err = nil
	}
	return info, err
}
