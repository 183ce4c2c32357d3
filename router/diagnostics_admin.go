package router

import (
	"context"
	"net"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/wire"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "getDefaultRWConcern", Admin: true, Help: "tells the concerns of requests that have none", Run: r.getDefaultRWConcern},
		{Name: "setDefaultRWConcern", Admin: true, Writes: true, Help: "sets them, on every backend", Run: r.onEveryBackend},
		{Name: "getClusterParameter", Admin: true, Help: "tells a parameter of the backends", Run: r.fromCatalogBackend},
		{Name: "setClusterParameter", Admin: true, Writes: true, Help: "sets it, on every backend", Run: r.onEveryBackend},
		{Name: "logRotate", Admin: true, Help: "does nothing: the log goes to the standard error", Run: okReply},
		{Name: "shutdown", Admin: true, Help: "ends the proxy, requests in flight first", Run: r.shutdown},
	}
})

// ownFields are the fields of an admin command that are its own, in their order.
func (q *Request) ownFields() (bson.D, error) {
	elems, err := bsoncore.Document(q.Msg.Body).Elements()
	if err != nil {
		return nil, wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
	}
	var cmd bson.D
	for i, e := range elems {
		if i > 0 && genericField(e.Key()) {
			continue
		}
		v := e.Value()
		cmd = append(cmd, bson.E{Key: e.Key(), Value: bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}})
	}
	return cmd, nil
}

// onEveryBackend has each backend do a command that concerns it as a whole: concerns and parameters hold where requests end. A
// backend that joins the fleet later gets the concerns (ShareDefaults) and has parameters of its own. Either all of them do it or none, as far as that can be known before: where
// one cannot, nothing is done. What only the command itself shows is told with the backends that have done it by then.
func (r *Router) onEveryBackend(ctx context.Context, q *Request) (Reply, error) {
	cmd, err := q.ownFields()
	if err != nil {
		return Reply{}, err
	}
	all := r.cfg.Backends.All()
	for _, b := range all {
		if err := r.takes(ctx, q, b); err != nil {
			return Reply{}, ofBackend(b.ID(), err, "; nothing was changed")
		}
	}
	var first bson.Raw
	unconfirmed := false
	var done []string
	for _, b := range all {
		reply, err := r.ask(ctx, b.ID(), "admin", cmd)
		if err != nil {
			return Reply{}, ofBackend(b.ID(), err, halfDone(done))
		}
		done = append(done, b.ID())
		// What one backend did not confirm is not confirmed.
		_, missing := reply.LookupErr("writeConcernError")
		if first == nil || b.ID() == r.cfg.CatalogBackend && !unconfirmed || missing == nil && !unconfirmed {
			first = relay(reply)
		}
		unconfirmed = unconfirmed || missing == nil
	}
	return Reply{Body: first}, nil
}

// takes checks, without a change, whether a backend can do the command that every backend is to do: a standalone has no default concerns, and each must be there to be asked.
func (r *Router) takes(ctx context.Context, q *Request, b *backend.Backend) error {
	if q.Command.Name != "setDefaultRWConcern" {
		_, err := r.ask(ctx, b.ID(), "admin", bson.D{{Key: "ping", Value: 1}})
		return err
	}
	alone, err := r.standalone(ctx, b.ID())
	if err == nil && alone {
		return wire.Errorf(notOnStandalone, "'setDefaultRWConcern' is not supported on standalone nodes: make it a replica set, which may have one member")
	}
	if err == nil {
		_, err = r.ask(ctx, b.ID(), "admin", bson.D{{Key: "getDefaultRWConcern", Value: 1}})
	}
	return err
}

// notOnStandalone is a server's code for setDefaultRWConcern on a standalone.
const notOnStandalone wire.Code = 51300

// ofBackend says whose error it is, and what that means for the others.
func ofBackend(id string, err error, means string) error {
	e := *wire.AsError(err)
	e.Message = "backend '" + id + "': " + e.Message + means
	return &e
}

// halfDone says who has done a command that a backend has refused.
func halfDone(done []string) string {
	if len(done) == 0 {
		return "; nothing was changed on the others"
	}
	return "; done on '" + strings.Join(done, "', '") + "', so run the command again once this is mended"
}

// fromCatalogBackend passes a command on to the backend on which the database admin lives.
func (r *Router) fromCatalogBackend(ctx context.Context, q *Request) (Reply, error) {
	cmd, err := q.ownFields()
	if err != nil {
		return Reply{}, err
	}
	reply, err := r.ask(ctx, r.cfg.CatalogBackend, "admin", cmd)
	if err != nil {
		return Reply{}, err
	}
	return Reply{Body: relay(reply)}, nil
}

// getDefaultRWConcern tells what holds where a request names none: the proxy adds nothing, so it is what the backends do. Where they
// cannot be asked, the defaults of servers from 5.0.
func (r *Router) getDefaultRWConcern(ctx context.Context, q *Request) (Reply, error) {
	if r.cfg.Backends.Get(r.cfg.CatalogBackend) != nil {
		reply, err := r.fromCatalogBackend(ctx, q)
		if err == nil || wire.AsError(err).Code != wire.CommandNotFound {
			return reply, err
		}
	}
	return docReply(bson.D{
		{Key: "defaultReadConcern", Value: bson.D{{Key: "level", Value: "local"}}},
		{Key: "defaultWriteConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: int32(0)}}},
		{Key: "defaultWriteConcernSource", Value: "implicit"},
		{Key: "defaultReadConcernSource", Value: "implicit"},
		{Key: "localUpdateWallClockTime", Value: bson.NewDateTimeFromTime(r.started)},
	})
}

// shutdown ends the process as SIGTERM does. Without users, only who is on the same machine may ask for it, as on a mongos.
func (r *Router) shutdown(_ context.Context, q *Request) (Reply, error) {
	if a, ok := q.Conn.nc.RemoteAddr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		return Reply{}, wire.Errorf(wire.Unauthorized, "shutdown must run from localhost when running without authentication")
	}
	if r.cfg.Stop == nil {
		return Reply{}, wire.Errorf(wire.CommandNotSupported, "shutdown is not supported here: end the process")
	}
	r.log.Info().Str("client", q.Conn.nc.RemoteAddr().String()).Msg("shutdown command")
	r.cfg.Stop()
	return Reply{Body: okBody}, nil
}
