// Package integration tests the proxy from outside: as a process of its own in front of real database servers, spoken to by
// real clients, killed where it hurts. It has tests only; what they stand on is in the packages below it:
//
//   - running builds the proxy once and runs it, kills it with SIGKILL and starts it again;
//   - rawconn speaks the wire protocol with nothing hidden, malformed messages included;
//   - differential runs the same random operations against two addresses and compares the replies.
//
// By default the whole takes some minutes on two cores. Environment variables make it longer:
//
//	SHARDWAY_DIFF_OPS      operations of the differential test (20000 in continuous integration)
//	SHARDWAY_DIFF_SEED     its seed; without one it is drawn, and printed
//	SHARDWAY_KILL_ROUNDS   rounds of each kill test
//	SHARDWAY_CITIES        the real data; else data/cities.ndjson.gz is looked for in ../shared
//	SHARDWAY_KEEP_CLIENTS  a directory where installed Node and Python clients are kept
package integration
