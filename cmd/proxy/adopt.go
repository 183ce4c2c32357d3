package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/catalog"
)

// adopt registers the databases that the backends hold and the catalog does not know, each with the
// backend it is on as its primary: nothing is copied, and clients go on using them. A database
// on two backends is an error that names both, since a client sees one; so are two names that differ in
// case only, and a database with collections that are named like our physical ones.
//
// A backend that is down is passed over with a warning: its databases are adopted at the next start.
func adopt(ctx context.Context, store *catalog.Store, set *backend.Set, log zerolog.Logger) error {
	known := store.Snapshot().Databases
	holders := map[string][]string{}
	for _, b := range set.All() {
		names, err := adoptable(ctx, b, known, log)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			log.Warn().Err(err).Str("backend", b.ID()).Msg("cannot be asked for its databases; those the catalog does not know are not served until a later start")
			continue
		}
		for _, name := range names {
			holders[name] = append(holders[name], b.ID())
		}
	}
	if err := conflicts(holders); err != nil {
		return err
	}
	for _, name := range sorted(holders) {
		if err := store.CreateDatabase(ctx, name, holders[name][0]); err != nil {
			return err
		}
		log.Info().Str("database", name).Str("backend", holders[name][0]).Msg("adopted")
	}
	return nil
}

// conflicts reports databases that cannot be adopted because a client could not tell which is meant.
func conflicts(holders map[string][]string) error {
	var errs []error
	lower := map[string]string{}
	for _, name := range sorted(holders) {
		if ids := holders[name]; len(ids) > 1 {
			errs = append(errs, fmt.Errorf("database %s is on the backends %s: a database is adopted from one backend; drop or rename it on the others", name, strings.Join(ids, " and ")))
		}
		if other, twice := lower[strings.ToLower(name)]; twice {
			errs = append(errs, fmt.Errorf("the databases %s (on %s) and %s (on %s) differ in case only", other, holders[other][0], name, holders[name][0]))
		}
		lower[strings.ToLower(name)] = name
	}
	return errors.Join(errs...)
}

func sorted(m map[string][]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// adoptable lists the databases of a backend that clients made and the catalog does not know.
func adoptable(ctx context.Context, b *backend.Backend, known map[string]*catalog.Database, log zerolog.Logger) ([]string, error) {
	all, err := b.Client().ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range all {
		if name == "admin" || name == "config" || name == "local" || catalog.IsInternalDB(name) || known[name] != nil {
			continue
		}
		clients, ours, err := collectionsOf(ctx, b, name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("database %s: %w", name, err)
		case clients == 0: // leftovers of a dropped database, which the sweep removes
		case ours > 0:
			log.Warn().Str("database", name).Str("backend", b.ID()).Msg("not adopted: it has collections with names of the form that partitions have (NAME@1f.2.0)")
		default:
			names = append(names, name)
		}
	}
	return names, nil
}

// collectionsOf counts a database's collections that clients made and those named like partitions.
func collectionsOf(ctx context.Context, b *backend.Backend, db string) (clients, ours int, err error) {
	names, err := b.Client().Database(db).ListCollectionNames(ctx, bson.D{})
	for _, name := range names {
		if catalog.IsPhysicalName(name) {
			ours++
		} else {
			clients++
		}
	}
	return clients, ours, err
}
