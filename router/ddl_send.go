package router

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/partition"
	"github.com/shardway/shardway/wire"
)

// partReply is what one partition's backend answered to a command sent to several.
type partReply struct {
	part *partition.Part
	// body is an ok reply without what is not passed on; its bytes are its own. nil with err.
	body bson.Raw
	err  error
}

// unconfirmed reports whether the command was done and its write concern not met.
func (p partReply) unconfirmed() bool { return p.err == nil && wire.WriteConcernError(p.body) != nil }

// majority is the write concern of all DDL, whatever the client asked for (mongos-behaviour §7.2). Its time limit
// keeps a backend without a majority from holding the request, and with it a gate, for ever.
var majority = bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(
	bsoncore.AppendStringElement(nil, "w", "majority"), "wtimeout", 60_000))

// fan sends the request's own command to each part's physical collection and returns the answers in the order of
// parts. more, if not nil, appends further fields; fields whose name drop accepts are left out.
func (r *Router) fan(ctx context.Context, q *Request, parts []*partition.Part, drop func(key []byte) bool, more func(*partition.Part, []byte) []byte) []partReply {
	return r.fanBodies(ctx, q, parts, func(p *partition.Part) []byte {
		return q.appendFor(nil, p, true, drop, func(dst []byte) []byte {
			if more != nil {
				return more(p, dst)
			}
			return dst
		})
	})
}

// fanBodies sends each part the command that body makes for it.
func (r *Router) fanBodies(ctx context.Context, q *Request, parts []*partition.Part, body func(*partition.Part) []byte) []partReply {
	targets := make([]target, len(parts))
	msgs := make([][]byte, len(parts))
	for i, p := range parts {
		targets[i] = target{Backend: p.Backend, Part: p}
		if !q.Command.Writes {
			targets[i].ReadPref = q.ReadPref
		}
		msgs[i] = wire.AppendMsg(nil, 0, 0, 0, body(p))
	}
	replies, errs := r.scatter(ctx, targets, msgs)
	results := make([]partReply, len(parts))
	for i, p := range parts {
		results[i] = partReply{part: p, err: errs[i]}
		if errs[i] != nil {
			continue
		}
		if err := commandError(replies[i].Body); err != nil {
			results[i].err = err
		} else {
			results[i].body = relay(replies[i].Body)
		}
		replies[i].Release()
	}
	return results
}

// fanDDL is fan for commands that change metadata: with a majority write concern in place of the client's.
func (r *Router) fanDDL(ctx context.Context, q *Request, parts []*partition.Part, drop func(key []byte) bool, more func(*partition.Part, []byte) []byte) []partReply {
	return r.fan(ctx, q, parts,
		func(key []byte) bool { return string(key) == "writeConcern" || drop != nil && drop(key) },
		func(p *partition.Part, dst []byte) []byte {
			dst = bsoncore.AppendDocumentElement(dst, "writeConcern", majority)
			if more != nil {
				dst = more(p, dst)
			}
			return dst
		})
}

// fanError returns the first error among the answers that keep does not forgive.
func fanError(results []partReply, forgiven wire.Code) error {
	for _, res := range results {
		if res.err != nil && wire.AsError(res.err).Code != forgiven {
			return res.err
		}
	}
	return nil
}

// rawReply makes mongos' reply to a command that ran on several shards: {raw: {<host string>:
// reply}, ok}. With failed, the reply is that error with raw beside it. Partitions on one backend
// share an entry: an error if there is one, else the first. The first write concern error of a
// partition stands beside raw as well, with where it happened, since clients look for it at the
// top.
func (r *Router) rawReply(results []partReply, failed error) (Reply, error) {
	raw := r.appendRaw(nil, results)
	if at := slices.IndexFunc(results, partReply.unconfirmed); at >= 0 {
		one := writeResult{concerns: []concernError{{results[at].part.Backend, results[at].body.Lookup("writeConcernError").Document()}}}
		raw = bsoncore.AppendDocumentElement(raw, "writeConcernError", one.concern())
	}
	if failed != nil {
		e := *wire.AsError(failed)
		if elems, err := bsoncore.Document(e.Extra).Elements(); err == nil { // what the backend's error says besides, such as collMod's violations
			for _, el := range elems {
				if el.Key() != "raw" {
					raw = append(raw, el...)
				}
			}
		}
		e.Extra = bson.Raw(bsoncore.BuildDocument(nil, raw))
		return Reply{}, &e
	}
	return Reply{Body: bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(raw, "ok", 1)))}, nil
}

func (r *Router) appendRaw(dst []byte, results []partReply) []byte {
	start, dst := bsoncore.AppendDocumentElementStart(dst, "raw")
	seen := map[string]bool{}
	for pass := range 3 { // errors first and then what is not confirmed, so that they win their backend's entry
		for _, res := range results {
			if seen[res.part.Backend] || pass == 0 && res.err == nil || pass == 1 && !res.unconfirmed() {
				continue
			}
			seen[res.part.Backend] = true
			body := []byte(res.body)
			if res.err != nil {
				body = wire.AppendErrorReply(nil, res.err)
			}
			dst = bsoncore.AppendDocumentElement(dst, r.hostOf(res.part.Backend), body)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// hostOf is a backend as mongos names a shard's hosts: "rs/h1:p,h2:p".
func (r *Router) hostOf(id string) string {
	if b := r.cfg.Backends.Get(id); b != nil {
		return b.HostString()
	}
	return id
}

// ask runs a command of the proxy's own on a backend's primary. The reply's bytes are its own.
func (r *Router) ask(ctx context.Context, backendID, db string, cmd bson.D) (bson.Raw, error) {
	reply, _, err := r.askHost(ctx, target{Backend: backendID}, db, cmd)
	return reply, err
}

func (r *Router) askHost(ctx context.Context, t target, db string, cmd bson.D) (bson.Raw, string, error) {
	full := make(bson.D, 0, len(cmd)+1)
	full = append(append(full, cmd...), bson.E{Key: "$db", Value: db})
	body, err := bson.Marshal(full)
	if err != nil {
		return nil, "", wire.Errorf(wire.InternalError, "a command of the proxy's own cannot be encoded: %v", err)
	}
	t.Wait = true
	reply, err := r.do(ctx, t, wire.AppendMsg(nil, 0, 0, 0, body))
	if err != nil {
		return nil, "", err
	}
	defer reply.Release()
	if err := commandError(reply.Body); err != nil {
		return nil, "", err
	}
	return append(bson.Raw(nil), reply.Body...), reply.Host, nil
}

// askAll runs a command that answers with a cursor and returns all of its documents.
func (r *Router) askAll(ctx context.Context, backendID, db string, cmd bson.D) ([]bson.Raw, error) {
	reply, host, err := r.askHost(ctx, target{Backend: backendID}, db, cmd)
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	for batch := "firstBatch"; ; batch = "nextBatch" {
		cursor, ok := reply.Lookup("cursor").DocumentOK()
		if !ok {
			return nil, wire.Errorf(wire.InternalError, "backend '%s' answered %s without a cursor", backendID, cmd[0].Key)
		}
		values, err := cursor.Lookup(batch).Array().Values()
		if err != nil {
			return nil, wire.Errorf(wire.InternalError, "backend '%s' answered %s without a batch", backendID, cmd[0].Key)
		}
		for _, v := range values {
			if d, ok := v.DocumentOK(); ok {
				docs = append(docs, d)
			}
		}
		id, ns := cursor.Lookup("id").AsInt64(), cursor.Lookup("ns").StringValue()
		if id == 0 {
			return docs, nil
		}
		next := bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: ns[len(db)+1:]}}
		if reply, host, err = r.askHost(ctx, target{Backend: backendID, Host: host}, db, next); err != nil {
			return nil, err
		}
	}
}
