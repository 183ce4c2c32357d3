package router

import (
	"strings"

	"github.com/shardway/shardway/catalog"
	"github.com/shardway/shardway/wire"
)

// maxNS is the longest namespace, in bytes.
const maxNS = catalog.MaxNS

// checkDB refuses database names that mongos refuses, and those that are ours.
func checkDB(db string) error {
	switch {
	case db == "":
		return wire.Errorf(wire.InvalidNamespace, "Invalid database name: ''")
	case len(db) > 63 || strings.ContainsAny(db, "/\\. \"$\x00"):
		return wire.Errorf(wire.InvalidNamespace, "Invalid database name: '%s'", db)
	case db == "local":
		return wire.Errorf(wire.IllegalOperation, "Can't use 'local' database through mongos")
	case catalog.IsInternalDB(db):
		return wire.Errorf(wire.InvalidNamespace, "Invalid database name: '%s' is reserved for the proxy's own use", db)
	}
	return nil
}

// checkCollection refuses collection names that cannot be used or that have the form of a physical name.
func checkCollection(db, coll string) error {
	switch {
	case coll == "" || coll[0] == '.' || strings.IndexByte(coll, 0) >= 0 || strings.IndexByte(coll, '$') >= 0 && coll != "$cmd.aggregate":
		return wire.Errorf(wire.InvalidNamespace, "Invalid namespace specified '%s.%s'", db, coll)
	case len(db)+1+len(coll) > maxNS:
		return wire.Errorf(wire.InvalidNamespace, "Fully qualified namespace is too long. Namespace: %s.%s Max: %d", db, coll, maxNS)
	case catalog.IsPhysicalName(coll):
		return wire.Errorf(wire.InvalidNamespace, "Invalid namespace specified '%s.%s': names that end in '@' and a partition's number are reserved", db, coll)
	}
	return nil
}
