// Package catalog keeps what makes a fleet of plain servers one cluster: partition maps, backends,
// databases and settings. They live in the database "shardway" on the catalog backend, written and read with
// majority; maps are append-only, {ns, v} inserted once. Requests never read the database: they read
// the Snapshot, an immutable value behind an atomic pointer.
package catalog
