package router

import (
	"context"
	"sort"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

var _ = register(listCommands)

func listCommands(r *Router) []Command {
	return []Command{
		{Name: "listCollections", API1: true, Help: "lists a database's collections and views", Run: r.listCollections},
		{Name: "listDatabases", Admin: true, API1: true, Help: "lists the databases", Run: r.listDatabases},
	}
}

// rawCollections is listCollections as the primary backend gives it, physical names and all.
func (r *Router) rawCollections(ctx context.Context, db, primary string) ([]bson.Raw, error) {
	return r.askAll(ctx, primary, db, bson.D{{Key: "listCollections", Value: 1}, {Key: "cursor", Value: bson.D{}}})
}

// listCollections lists what has no map as the primary backend does, and what has one by asking for its first
// partition. A filter is applied to what is listed, so that it sees clients' names only.
func (r *Router) listCollections(ctx context.Context, q *Request) (Reply, error) {
	ns := q.DB + ".$cmd.listCollections"
	if q.DB == "config" {
		docs, err := r.filtered(ctx, q, r.cfg.CatalogBackend, configInfos())
		if err != nil {
			return Reply{}, err
		}
		return r.listInfos(ctx, q, ns, docs)
	}
	d, err := r.database(ctx, q.DB)
	if err != nil {
		return Reply{}, err
	}
	if d == nil {
		return r.listReply(ctx, q, ns, nil)
	}
	docs, err := r.collectionInfos(ctx, q.DB, d.Primary)
	if err != nil {
		return Reply{}, err
	}
	if docs, err = r.filtered(ctx, q, d.Primary, docs); err != nil {
		return Reply{}, err
	}
	return r.listInfos(ctx, q, ns, docs)
}

// collectionInfos are the entries of listCollections for all of a database's collections, under clients' names.
func (r *Router) collectionInfos(ctx context.Context, db, primary string) ([]bson.Raw, error) {
	view := r.cfg.Table.View()
	raw, err := r.rawCollections(ctx, db, primary)
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	for _, info := range raw {
		name, _ := info.Lookup("name").StringValueOK()
		if !catalog.IsPhysicalName(name) && view.Catalog.Maps[db+"."+name] == nil {
			docs = append(docs, info)
		}
	}
	mapped, err := r.mappedCollections(ctx, view, db)
	return append(docs, mapped...), err
}

func (r *Router) listInfos(ctx context.Context, q *Request, ns string, docs []bson.Raw) (Reply, error) {
	if boolField(q.Msg.Body, "nameOnly") {
		for i, doc := range docs {
			docs[i] = onlyFields(doc, "name", "type")
		}
	}
	return r.listReply(ctx, q, ns, docs)
}

// mappedCollections lists the collections of db that have a map, by name.
func (r *Router) mappedCollections(ctx context.Context, view *partition.View, db string) ([]bson.Raw, error) {
	byBackend := map[string][]*partition.Collection{}
	for c := range view.Mapped {
		if c.DB == db && len(c.Parts) > 0 {
			byBackend[c.Parts[0].Backend] = append(byBackend[c.Parts[0].Backend], c)
		}
	}
	var docs []bson.Raw
	for id, colls := range byBackend {
		names := bson.A{}
		of := map[string]*partition.Collection{}
		for _, c := range colls {
			names = append(names, c.Parts[0].Physical)
			of[c.Parts[0].Physical] = c
		}
		infos, err := r.askAll(ctx, id, db, bson.D{{Key: "listCollections", Value: 1},
			{Key: "filter", Value: bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: names}}}}}, {Key: "cursor", Value: bson.D{}}})
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			name, _ := info.Lookup("name").StringValueOK()
			if c := of[name]; c != nil {
				docs = append(docs, logicalInfo(info, c))
			}
		}
	}
	sort.Slice(docs, func(i, j int) bool {
		return docs[i].Lookup("name").StringValue() < docs[j].Lookup("name").StringValue()
	})
	return docs, nil
}

// logicalInfo is an entry of listCollections with the client's name and the map's UUID.
func logicalInfo(info bson.Raw, c *partition.Collection) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(nil)
	elems, _ := bsoncore.Document(info).Elements()
	for _, e := range elems {
		v := e.Value()
		switch key := e.Key(); {
		case key == "name":
			dst = bsoncore.AppendStringElement(dst, key, c.Name)
		case key == "info" && v.Type == bsoncore.TypeEmbeddedDocument && len(c.Map.UUID.Data) == 16:
			at, d := bsoncore.AppendDocumentElementStart(dst, key)
			inner, _ := v.Document().Elements()
			for _, e := range inner {
				if string(e.KeyBytes()) == "uuid" {
					d = bsoncore.AppendBinaryElement(d, "uuid", c.Map.UUID.Subtype, c.Map.UUID.Data)
				} else {
					d = append(d, e...)
				}
			}
			dst, _ = bsoncore.AppendDocumentEnd(d, at)
		case key == "idIndex" && v.Type == bsoncore.TypeEmbeddedDocument:
			dst = bsoncore.AppendDocumentElement(dst, key, bsoncore.Document(withNS(bson.Raw(v.Document()), c.NS)))
		default:
			dst = append(dst, e...)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

func onlyFields(doc bson.Raw, names ...string) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(nil)
	for _, n := range names {
		if v, err := bsoncore.Document(doc).LookupErr(n); err == nil {
			dst = bsoncore.AppendValueElement(dst, n, v)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// filtered applies the request's filter to documents of a listing. What clients send most, a name, is looked at here; any other
// filter is a server's to judge: the documents go there as $documents.
func (r *Router) filtered(ctx context.Context, q *Request, backendID string, docs []bson.Raw) ([]bson.Raw, error) {
	v, err := q.Msg.Body.LookupErr("filter")
	if err != nil || v.Type == bson.TypeNull {
		return docs, nil
	}
	filter, ok := v.DocumentOK()
	if !ok {
		return nil, typeMismatch(q.Command.Name+".filter", bsoncore.Value{Type: bsoncore.Type(v.Type)}, "object")
	}
	elems, err := filter.Elements()
	if err != nil {
		return nil, wire.Errorf(wire.InvalidBSON, "the filter is not a valid document")
	}
	if len(elems) == 0 || len(docs) == 0 {
		return docs, nil
	}
	if name, ok := elems[0].Value().StringValueOK(); ok && len(elems) == 1 && elems[0].Key() == "name" {
		var kept []bson.Raw
		for _, d := range docs {
			if n, _ := d.Lookup("name").StringValueOK(); n == name {
				kept = append(kept, d)
			}
		}
		return kept, nil
	}
	var kept []bson.Raw
	for len(docs) > 0 { // in parts that servers take
		b := &batch{}
		for len(docs) > 0 && len(b.docs) < restChunk {
			b.add(docs[0])
			docs = docs[1:]
		}
		some, err := r.askAll(ctx, backendID, "admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{
			literalDocuments(b),
			bson.D{{Key: "$match", Value: filter}},
		}}, {Key: "cursor", Value: bson.D{}}})
		if err != nil {
			return nil, err
		}
		kept = append(kept, some...)
	}
	return kept, nil
}

// dbSize is what the backends say of one database.
type dbSize struct {
	total  int64
	empty  bool
	shards []byte // elements: backend id, bytes there
}

// listDatabases sums the sizes over the fleet. Ours are not shown, nor local; admin is the catalog backend's.
func (r *Router) listDatabases(ctx context.Context, q *Request) (Reply, error) {
	sizes := map[string]*dbSize{}
	for _, b := range r.cfg.Backends.All() {
		reply, err := r.ask(ctx, b.ID(), "admin", bson.D{{Key: "listDatabases", Value: 1}})
		if err != nil {
			return Reply{}, err
		}
		values, err := reply.Lookup("databases").Array().Values()
		if err != nil {
			return Reply{}, wire.Errorf(wire.InternalError, "backend '%s' answered listDatabases without a list", b.ID())
		}
		for _, v := range values {
			doc, _ := v.DocumentOK()
			name, _ := doc.Lookup("name").StringValueOK()
			if listed, err := r.listed(ctx, name, b.ID()); err != nil {
				return Reply{}, err
			} else if !listed {
				continue
			}
			s := sizes[name]
			if s == nil {
				s = &dbSize{empty: true}
				sizes[name] = s
			}
			n, _ := doc.Lookup("sizeOnDisk").AsInt64OK()
			s.total += n
			s.empty = s.empty && boolField(doc, "empty")
			s.shards = bsoncore.AppendInt64Element(s.shards, b.ID(), n)
		}
	}
	if sizes["config"] == nil { // it is made of the catalog, whatever the backend has under this name
		sizes["config"] = &dbSize{shards: bsoncore.AppendInt64Element(nil, r.cfg.CatalogBackend, 0)}
	}
	names := make([]string, 0, len(sizes))
	for n := range sizes {
		names = append(names, n)
	}
	sort.Strings(names)
	docs := make([]bson.Raw, len(names))
	for i, n := range names {
		docs[i] = sizes[n].entry(n)
	}
	docs, err := r.filtered(ctx, q, r.cfg.CatalogBackend, docs)
	if err != nil {
		return Reply{}, err
	}
	return databasesReply(docs, boolField(q.Msg.Body, "nameOnly")), nil
}

// listed reports whether a database that a backend has is one that clients see there.
func (r *Router) listed(ctx context.Context, name, backendID string) (bool, error) {
	switch {
	case catalog.IsInternalDB(name) || name == "local":
		return false, nil
	case name == "admin" || name == "config":
		return backendID == r.cfg.CatalogBackend, nil
	}
	d, err := r.database(ctx, name)
	return d != nil, err
}

func (s *dbSize) entry(name string) bson.Raw {
	d := bsoncore.AppendStringElement(nil, "name", name)
	d = bsoncore.AppendInt64Element(d, "sizeOnDisk", s.total)
	d = bsoncore.AppendBooleanElement(d, "empty", s.empty)
	d = bsoncore.AppendDocumentElement(d, "shards", bsoncore.BuildDocument(nil, s.shards))
	return bson.Raw(bsoncore.BuildDocument(nil, d))
}

func databasesReply(docs []bson.Raw, nameOnly bool) Reply {
	start, dst := bsoncore.AppendDocumentStart(nil)
	at, dst := bsoncore.AppendArrayElementStart(dst, "databases")
	var total int64
	for i, d := range docs {
		n, _ := d.Lookup("sizeOnDisk").AsInt64OK()
		total += n
		if nameOnly {
			d = onlyFields(d, "name")
		}
		dst = bsoncore.AppendDocumentElement(dst, arrayIndex(i), bsoncore.Document(d))
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	if !nameOnly {
		dst = bsoncore.AppendInt64Element(dst, "totalSize", total)
		dst = bsoncore.AppendInt64Element(dst, "totalSizeMb", total>>20)
	}
	dst = bsoncore.AppendDoubleElement(dst, "ok", 1)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return Reply{Body: dst}
}
