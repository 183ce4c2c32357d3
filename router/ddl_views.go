package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// viewsFor is how long the definitions of a database's views are believed. They change through this proxy, which forgets them
// then; another proxy's change is seen after this time.
const viewsFor = 10 * time.Second

// viewCache remembers which views the databases have and what they read.
type viewCache struct {
	mu  sync.Mutex
	dbs map[string]*dbViews
}

// dbViews has, for each view of one database, the namespaces it reads itself. Immutable.
type dbViews struct {
	read  time.Time
	reads map[string][]string
}

// forget drops what is known of a database's views.
func (v *viewCache) forget(db string) {
	v.mu.Lock()
	delete(v.dbs, db)
	v.mu.Unlock()
}

// get returns what is known of a database's views, nil when the caller is to read them. When they have become old one
// caller is told so, and the others go on with what is known meanwhile.
func (v *viewCache) get(db string) *dbViews {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.dbs[db]
	if d == nil {
		return nil
	}
	if time.Since(d.read) >= viewsFor {
		v.dbs[db] = &dbViews{read: time.Now(), reads: d.reads}
		return nil
	}
	return d
}

func (v *viewCache) put(db string, d *dbViews) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.dbs == nil {
		v.dbs = map[string]*dbViews{}
	}
	v.dbs[db] = d
}

// checkView refuses (115) a view that reads a namespace with a map: its backend would read there what is left under
// the name, or nothing. Other views, and collections, pass; the check costs nothing while no namespace has a map.
func (r *Router) checkView(ctx context.Context, c *partition.Collection) error {
	if c == nil || c.Map != nil {
		return nil
	}
	view := r.cfg.Table.View()
	if len(view.Catalog.Maps) == 0 {
		return nil
	}
	views, err := r.viewsOf(ctx, c.DB, c.Parts[0].Backend)
	if err != nil {
		return err
	}
	reads, isView := views.reads[c.Name]
	if !isView {
		return nil
	}
	if ns := views.mapped(view, c.DB, reads, 0); ns != "" {
		return errViewOfMapped(c.NS, ns)
	}
	return nil
}

func errViewOfMapped(view, ns string) error {
	return wire.Errorf(wire.CommandNotSupported, "view '%s' reads '%s', which is sharded, or was dropped, renamed or moved before; views on such collections are not supported yet", view, ns)
}

// mapped returns a namespace with a map that reading the given ones touches, views followed; "" when there is none.
func (d *dbViews) mapped(view *partition.View, db string, reads []string, depth int) string {
	const deepest = 20 // mongod's limit of nested views
	for _, ns := range reads {
		if view.Catalog.Maps[ns] != nil {
			return ns
		}
		inDB, coll := catalog.SplitNS(ns)
		if inDB != db || depth >= deepest {
			continue
		}
		if ns := d.mapped(view, db, d.reads[coll], depth+1); ns != "" {
			return ns
		}
	}
	return ""
}

// viewsOf returns the views of a database, asking its primary backend when they are not known.
func (r *Router) viewsOf(ctx context.Context, db, primary string) (*dbViews, error) {
	if d := r.views.get(db); d != nil {
		return d, nil
	}
	d := &dbViews{read: time.Now(), reads: map[string][]string{}}
	infos, err := r.askAll(ctx, primary, db, bson.D{{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "type", Value: "view"}}}, {Key: "cursor", Value: bson.D{}}})
	if err != nil {
		return nil, err
	}
	for _, info := range infos {
		if options, ok := info.Lookup("options").DocumentOK(); ok {
			d.reads[info.Lookup("name").StringValue()] = readsOf(db, options)
		}
	}
	r.views.put(db, d)
	return d, nil
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

// checkViewDefinition refuses to make a view of what has a map.
func (r *Router) checkViewDefinition(ctx context.Context, db, name string, options bson.Raw) error {
	reads := readsOf(db, options)
	view := r.cfg.Table.View()
	d := view.Catalog.Databases[db]
	if d == nil || len(view.Catalog.Maps) == 0 {
		return nil
	}
	views, err := r.viewsOf(ctx, db, d.Primary)
	if err != nil {
		return err
	}
	if ns := views.mapped(view, db, reads, 0); ns != "" {
		return errViewOfMapped(db+"."+name, ns)
	}
	return nil
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
