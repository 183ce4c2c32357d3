package fleet

import "slices"

// Feature is something that tests need and that not every server has.
type Feature string

// What a server may have or lack. docs/test-server.md tells the whole difference.
const (
	ReplicaSet                 Feature = "replicaSet"                 // change streams, transactions, retryable writes
	HashedIndexes              Feature = "hashedIndexes"              // {k: "hashed"}
	TextIndexes                Feature = "textIndexes"                // {k: "text"}, $text
	JavaScript                 Feature = "javaScript"                 // $where, $function, mapReduce
	FailPoints                 Feature = "failPoints"                 // configureFailPoint
	RetryRecordsSurviveRestart Feature = "retryRecordsSurviveRestart" // a repeated write is known after a restart
	TransactionsCollection     Feature = "transactionsCollection"     // config.transactions holds the retry records
	ConcurrentRetries          Feature = "concurrentRetries"          // a retry waits for a first try that still runs
	RetriedStmtIDs             Feature = "retriedStmtIds"             // replies to retries say so; 225 for an old txnNumber
	DurableCommits             Feature = "durableCommits"             // acknowledged writes survive kill -9
	TransactionLifetimeLimit   Feature = "transactionLifetimeLimit"   // transactionLifetimeLimitSeconds is honoured
	SnapshotReads              Feature = "snapshotReads"              // atClusterTime reads the past
	SnapshotsSurviveRestart    Feature = "snapshotsSurviveRestart"    // a transaction's snapshot has what was committed before the server was killed
	CausalReads                Feature = "causalReads"                // afterClusterTime waits
	ChangeStreamHistoryLost    Feature = "changeStreamHistoryLost"    // an overtaken stream ends with 286
	StandaloneRefusesSessions  Feature = "standaloneRefusesSessions"  // txnNumber on a standalone: 20
	ChecksumVerified           Feature = "checksumVerified"           // a wrong OP_MSG checksum is refused
	CollectionUUID             Feature = "collectionUUID"             // collectionUUID mismatch: 361
	KillOp                     Feature = "killOp"                     // killOp and currentOp work
	LiveCursors                Feature = "liveCursors"                // a cursor's memory does not grow with its result
	ViewsReadOnly              Feature = "viewsReadOnly"              // a write to a view is refused: 166
	BinaryRanges               Feature = "binaryRanges"               // $gt and $lt on binary values
)

// Has reports whether every server of the fleet has the feature.
func (f *Fleet) Has(feature Feature) bool {
	if slices.Contains(f.options.FrontHas, feature) && len(f.Servers) > 0 && f.Servers[0].front != nil {
		return true
	}
	switch feature {
	case ReplicaSet:
		return !f.options.Standalone
	case TransactionsCollection, RetryRecordsSurviveRestart:
		return f.program.Kind == Mongod && !f.options.Standalone
	case DurableCommits:
		// A mongod loses nothing of what a majority acknowledged; a standalone needs j:true.
		return f.program.Kind == Mongod || f.options.SyncOnCommit
	case RetriedStmtIDs, TransactionLifetimeLimit, CausalReads, ViewsReadOnly:
		return f.program.Kind != SecantusPy
	}
	return f.program.Kind == Mongod
}
