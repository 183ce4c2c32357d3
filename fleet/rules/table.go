package rules

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Row is one rule of a mongod's that the stand-in does not keep.
type Row struct {
	// Rule says what a mongod does.
	Rule string
	// Source says how that is known: "measured" is what a mongod 6.3 answered, "source" a file of
	// the server's, "manual" a page of its manual.
	Source string
	// Commands are the commands that it concerns, in lower case; empty for all.
	Commands string
	// Since and Before are the versions between which it holds; zero for no limit.
	Since, Before Version
	// Only is where it holds: on sets, on standalones, or on both when empty.
	Only string

	hook func(s *State, r *Request) (bson.Raw, func(bson.Raw) bson.Raw)
}

const (
	onSets  = "sets"
	onAlone = "standalones"

	writes  = "insert update delete findandmodify"
	reads   = "find aggregate count distinct"
	changes = writes + " bulkwrite create createindexes drop dropindexes renamecollection collmod dropdatabase committransaction"
)

// Table lists the rules in the order in which they look at a request. They see replies in the
// opposite order.
func Table() []Row {
	return []Row{
		{Rule: "hello says the version's maxWireVersion, and the relay's address instead of the server's",
			Source: "source: wire_version.h", Commands: "hello ismaster replsetgetstatus replsetgetconfig", hook: (*State).hello},
		{Rule: "buildInfo says the version", Source: "manual: buildInfo", Commands: "buildinfo", hook: (*State).buildInfo},
		{Rule: "a client's $clusterTime moves the clock; more than a year ahead of the wall clock it is refused: 205",
			Source: "measured; source: vector_clock.cpp", Only: onSets, hook: (*State).clusterTime},
		{Rule: "errors that a retry may mend carry RetryableWriteError, beside a writeConcernError too, where a txnNumber came along",
			Source: "measured; source: error_labels.cpp", Commands: writes + " bulkwrite committransaction aborttransaction", Only: onSets, hook: (*State).labels},
		{Rule: "a standalone takes no txnNumber: 20", Source: "source: transaction_validation.cpp, session_catalog_mongod.cpp", Only: onAlone, hook: (*State).standalone},
		{Rule: "bulkWrite is a command since 8.0: 59 before", Source: "manual: bulkWrite", Commands: "bulkwrite", Before: V80, hook: (*State).noSuchCommand},
		{Rule: "a field that the version does not know is refused: 40415", Source: "measured; source: the commands' .idl files",
			Commands: writes + " find aggregate getmore", hook: (*State).unknownField},
		{Rule: "the code 40415 has no name yet", Source: "measured", Before: V80, hook: (*State).unnamed},
		{Rule: "afterClusterTime goes with the levels majority, local and snapshot only: 72", Source: "measured; source: read_concern_args.cpp",
			Commands: reads, Only: onSets, hook: (*State).levels},
		{Rule: "config.transactions cannot be read with snapshot, nor with majority and afterClusterTime: 5557800", Source: "measured; source: db_raii.cpp",
			Commands: reads, Only: onSets, hook: (*State).transactionsConcern},
		{Rule: "afterClusterTime after the node's clock is refused: 72; up to it a primary answers at once", Source: "measured",
			Commands: reads, Only: onSets, hook: (*State).afterClusterTime},
		{Rule: "find with noCursorTimeout on a view or a time-series collection is refused: 168", Source: "measured", Commands: "find", hook: (*State).noCursorTimeout},
		{Rule: "create of what exists is refused, with the same options too: 48", Source: "measured", Commands: "create", Before: V70, hook: (*State).createAgain},
		{Rule: "drop of what does not exist is refused: 26", Source: "measured; manual: drop (7.0: no error)", Commands: "drop", Before: V70, hook: (*State).dropNothing},
		{Rule: "no more sessions than the maximum between two refreshes: 261", Source: "source: logical_session_cache_impl.cpp", hook: (*State).sessionLimit},
		{Rule: "a session that is not used for 30 minutes ends, and its cursors with it: 43 CursorNotFound", Source: "measured; manual: localLogicalSessionTimeoutMinutes",
			Commands: reads + " getmore killcursors listcollections listindexes endsessions killsessions refreshsessions", hook: (*State).sessionCursors},
		{Rule: "commitTransaction of an unknown transaction whose write concern cannot be met: 251 and writeConcernError 100, without TransientTransactionError",
			Source: "measured", Commands: "committransaction", Only: onSets, hook: (*State).unknownCommit},
		{Rule: "a repeated commitTransaction of what was committed is ok, after a restart too", Source: "source: transaction_participant.cpp",
			Commands: "committransaction", Only: onSets, hook: (*State).commit},
		{Rule: "config.transactions has a record of each session's newest retryable write or transaction, across restarts", Source: "measured",
			Commands: "find", Only: onSets, hook: (*State).readTransactions},
		{Rule: "the oplog has a chain of each session's statements: stmtId and prevOpTime", Source: "source: oplog_entry.idl", Commands: "find", Only: onSets, hook: (*State).readChain},
		{Rule: "a statement of a transaction belongs to its session's newest number; a write with a newer one aborts the transaction", Source: "source: transaction_participant.cpp", Commands: reads + " " + writes + " aborttransaction", Only: onSets, hook: (*State).inTransaction},
		{Rule: "writes are counted while they are on their way, so that the time of each is told exactly", Source: "the relay's own", Commands: changes, Only: onSets, hook: (*State).countWrites},
		{Rule: "a retryable write is applied once: repetitions wait for the first try and are answered from the record (retriedStmtIds, retriedStmtId), across restarts; an older number is 225; multi with a txnNumber is 72",
			Source: "measured; source: write_ops_exec.cpp", Commands: writes, Only: onSets, hook: (*State).retryable},
	}
}

// choose keeps the rows that hold for this server, by command.
func (s *State) choose(table []Row) {
	holds := func(row *Row) bool {
		return (row.Since == 0 || s.settings.Version >= row.Since) && (row.Before == 0 || s.settings.Version < row.Before) &&
			(row.Only == "" || (row.Only == onAlone) == s.settings.Standalone)
	}
	named := map[string]bool{}
	for i := range table {
		for _, name := range strings.Fields(table[i].Commands) {
			named[name] = true
		}
	}
	for i := range table {
		row := &table[i]
		if !holds(row) {
			continue
		}
		if row.Commands == "" {
			s.always = append(s.always, row)
			for name := range named {
				s.rows[name] = append(s.rows[name], row)
			}
			continue
		}
		for _, name := range strings.Fields(row.Commands) {
			s.rows[name] = append(s.rows[name], row)
		}
	}
}

// Hook is the table as a relay's hook.
func (s *State) Hook() Hook {
	return func(r *Request) (bson.Raw, func(bson.Raw) bson.Raw) {
		rows, named := s.rows[strings.ToLower(r.Name)]
		if !named {
			rows = s.always
		}
		for _, row := range rows {
			reply, edit := row.hook(s, r)
			if edit != nil {
				r.edits = append(r.edits, edit)
			}
			if reply != nil || r.cut {
				return reply, nil
			}
		}
		return nil, nil
	}
}
