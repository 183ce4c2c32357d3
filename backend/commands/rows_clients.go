package commands

// What clients' commands may carry of all commands: what the router passes on or makes anew. Client rows have it by general.
var general = []string{"comment", "lsid", "$clusterTime", "maxTimeMS", "$readPreference"}

// inTransaction are the fields of a statement that may be part of a transaction.
var inTransaction = []string{"txnNumber", "autocommit", "startTransaction"}

func fromClient(more ...string) []string { return append(general[:len(general):len(general)], more...) }

func statement(more ...string) []string { return append(fromClient(more...), inTransaction...) }

var clientsRead = []string{ClientsOwn}

const failsWith13 = "the command fails with 13 Unauthorized"

var routerRows = []Row{
	{Name: "find", By: Router, On: OnTxns, Always: []string{"filter", "batchSize", "singleBatch", "maxTimeMS"}, Read: []string{linearizable}, SetOnly: true,
		Needs: []Privilege{onCollection("config", "transactions", "find")}, Why: "whether a repeated write was executed already: what a home has on record of a session"},
	{Name: "find", By: Router, On: OnOplog, Always: []string{"filter", "limit", "singleBatch", "maxTimeMS"}, May: []string{"$clusterTime"}, Read: []string{majority, majorityAfter}, SetOnly: true,
		Needs: []Privilege{onCollection("local", "oplog.rs", "find")}, Why: "the same: the statements of a session's newest number",
		Unseen: "a retryable write would have to be repeated after a change of the map"},
	{Name: "listCollections", By: Router, On: OnClientData, Always: []string{"cursor"}, May: []string{"filter"}, Needs: []Privilege{onAll("listCollections")},
		Why: "clients' listCollections, options of a collection, what a view is on"},
	{Name: "dbStats", By: Router, On: OnClientData, May: []string{"scale", "freeStorage"}, Needs: []Privilege{onAll("dbStats")}, Without: failsWith13, Why: "clients' dbStats"},
	{Name: "dataSize", By: Router, On: OnClientData, May: []string{"keyPattern", "min", "max", "estimate"}, Needs: []Privilege{onAll("find")}, Without: failsWith13, Why: "clients' dataSize"},
	{Name: "find", By: Router, On: OnClientData, Always: []string{"filter", "projection", "limit", "singleBatch"},
		May: []string{"sort", "collation", "let", "hint", "comment", "lsid", "txnNumber", "autocommit", "startTransaction", "maxTimeMS", "$clusterTime"}, Read: clientsRead,
		Needs: []Privilege{onAll("find")}, Why: "the document of a write without the shard key; the shard key of a document that an update may change"},
	{Name: "aggregate", By: Router, On: Everywhere, Stage: "$documents", Always: []string{"pipeline", "cursor"}, May: []string{"comment", "lsid", "let", "collation", "allowDiskUse", "maxTimeMS", "$clusterTime"},
		Why: "what follows a merge, and reads of the database config: the documents are given, no collection is read"},
	{Name: "aggregate", By: Router, On: OnAdmin, Stage: "$currentOp", Always: []string{"pipeline", "cursor"}, Needs: []Privilege{onCluster("inprog")}, Without: failsWith13,
		Why: "clients' currentOp"},
	{Name: "killOp", By: Router, On: OnAdmin, Always: []string{"op"}, Needs: []Privilege{onCluster("killop")}, Without: failsWith13, Why: "clients' killOp"},
	{Name: "getMore", By: Router, On: Everywhere, Always: []string{"collection"}, May: fromClient("txnNumber", "autocommit"),
		Why: "the next batch of a client's cursor on one partition, and of the router's own reads"},
	{Name: "drop", By: Router, On: OnClientData, Write: []string{majority}, Needs: []Privilege{onAll("dropCollection")}, Why: "system.views and leftovers, at the end of dropDatabase",
		Unseen: "a database would have to keep a collection that no map names"},
	{Name: "setDefaultRWConcern", By: Router, On: OnAdmin, May: []string{"defaultReadConcern", "defaultWriteConcern"}, Write: clientsRead, SetOnly: true,
		Needs: []Privilege{onCluster("setDefaultRWConcern")}, Without: failsWith13, Why: "clients' setDefaultRWConcern, on every backend", Unseen: unseenBesideStandalone},
	{Name: "getClusterParameter", By: Router, On: OnAdmin, SetOnly: true, Needs: []Privilege{onCluster("getClusterParameter")}, Without: failsWith13,
		Why: "clients' getClusterParameter, asked of the catalog's backend"},
	{Name: "setClusterParameter", By: Router, On: OnAdmin, Write: clientsRead, SetOnly: true, Needs: []Privilege{onCluster("setClusterParameter")}, Without: failsWith13,
		Why: "clients' setClusterParameter, on every backend"},
	{Name: "fsync", By: Router, On: OnAdmin, Needs: []Privilege{onCluster("fsync")}, Without: failsWith13, Why: "clients' fsync, on every backend"},
	{Name: "endSessions", By: Router, On: OnAdmin, SetOnly: true, Why: "sessions of clients that have ended, on the backends that have one derived from them"},
	{Name: "refreshSessions", By: Router, On: OnAdmin, SetOnly: true, Why: "the same sessions, kept"},
	{Name: "killSessions", By: Router, On: OnAdmin, SetOnly: true, Why: "the same sessions, ended with what they are doing"},
	{Name: "commitTransaction", By: Router, On: OnAdmin, Always: []string{"lsid", "txnNumber", "autocommit"}, May: []string{"comment", "maxTimeMS", "recoveryToken"}, Write: clientsRead, SetOnly: true,
		Why: "clients' commitTransaction, repeated by the proxy where its outcome is not known"},
	{Name: "abortTransaction", By: Router, On: OnAdmin, Always: []string{"lsid", "txnNumber", "autocommit"}, May: []string{"comment", "maxTimeMS", "recoveryToken"}, Write: clientsRead, SetOnly: true,
		Why: "clients' abortTransaction, and the proxy's where a client has gone"},
}

var clientRows = []Row{
	{Name: "find", By: Client, On: OnClientData, Always: []string{}, May: statement("filter", "sort", "projection", "hint", "skip", "limit", "batchSize", "singleBatch", "max", "min", "returnKey",
		"showRecordId", "tailable", "oplogReplay", "noCursorTimeout", "awaitData", "allowPartialResults", "collation", "allowDiskUse", "let"), Read: clientsRead,
		Needs: []Privilege{onAll("find")}, Why: "find"},
	{Name: "aggregate", By: Client, On: OnClientData, Stage: "$indexStats", Always: []string{"pipeline"}, May: fromClient("cursor"), Read: clientsRead,
		Needs: []Privilege{onAll("indexStats")}, Without: failsWith13, Why: "$indexStats"},
	{Name: "aggregate", By: Client, On: OnClientData, Stage: "$planCacheStats", Always: []string{"pipeline"}, May: fromClient("cursor"), Read: clientsRead,
		Needs: []Privilege{onAll("planCacheRead")}, Without: failsWith13, Why: "$planCacheStats", Unseen: "the stand-in server has none"},
	{Name: "aggregate", By: Client, On: OnClientData, Stage: "$collStats", Always: []string{"pipeline"}, May: fromClient("cursor"), Read: clientsRead,
		Needs: []Privilege{onAll("collStats")}, Without: failsWith13, Why: "$collStats"},
	{Name: "aggregate", By: Client, On: OnClientData, Always: []string{"pipeline"}, May: statement("cursor", "explain", "allowDiskUse", "bypassDocumentValidation", "collation", "hint", "let"),
		Read: clientsRead, Write: clientsRead, Needs: []Privilege{onAll("find", "insert", "remove", "update")}, Why: "aggregate; $out and $merge write"},
	{Name: "count", By: Client, On: OnClientData, May: fromClient("query", "limit", "skip", "hint", "collation", "fields"), Read: clientsRead,
		Needs: []Privilege{onAll("find")}, Why: "count"},
	{Name: "distinct", By: Client, On: OnClientData, May: statement("key", "query", "collation", "hint"), Read: clientsRead, Needs: []Privilege{onAll("find")}, Why: "distinct"},
	{Name: "explain", By: Client, On: OnClientData, May: fromClient("verbosity"), Read: clientsRead, Needs: []Privilege{onAll("find")}, Why: "explain"},
	{Name: "insert", By: Client, On: OnClientData, Always: []string{"documents"}, May: statement("ordered", "bypassDocumentValidation", bypassEmptyTs, "stmtIds", "stmtId"), Read: clientsRead, Write: clientsRead,
		Needs: []Privilege{onAll("insert")}, Newer: bypassKnown, Why: "insert"},
	{Name: "update", By: Client, On: OnClientData, Always: []string{"updates"}, May: statement("ordered", "bypassDocumentValidation", bypassEmptyTs, "let", "stmtIds", "stmtId"), Read: clientsRead, Write: clientsRead,
		Needs: []Privilege{onAll("find", "insert", "update")}, Newer: bypassKnown, Why: "update"},
	{Name: "delete", By: Client, On: OnClientData, Always: []string{"deletes"}, May: statement("ordered", "let", "stmtIds", "stmtId"), Read: clientsRead, Write: clientsRead,
		Needs: []Privilege{onAll("find", "remove")}, Why: "delete"},
	{Name: "findAndModify", By: Client, On: OnClientData, May: statement("query", "sort", "remove", "update", "new", "fields", "upsert", "bypassDocumentValidation", bypassEmptyTs, "collation", "arrayFilters", "hint", "let", "stmtId"),
		Read: clientsRead, Write: clientsRead, Needs: []Privilege{onAll("find", "insert", "update", "remove")}, Newer: bypassKnown, Why: "findAndModify"},
	{Name: "create", By: Client, On: OnClientData, May: fromClient(append([]string{"autoIndexId", "idIndex", "encryptedFields"}, createOptions...)...), Write: []string{majority60s, majority},
		Needs: []Privilege{onAll("createCollection", "find")}, Why: "create"},
	{Name: "createIndexes", By: Client, On: OnClientData, Always: []string{"indexes"}, May: fromClient("commitQuorum"), Write: []string{majority60s, majority}, Needs: []Privilege{onAll("createIndex")}, Why: "createIndexes"},
	{Name: "dropIndexes", By: Client, On: OnClientData, Always: []string{"index"}, May: fromClient(), Write: []string{majority60s, majority}, Needs: []Privilege{onAll("dropIndex")}, Why: "dropIndexes"},
	{Name: "collMod", By: Client, On: OnClientData, May: fromClient("index", "validator", "validationLevel", "validationAction", "viewOn", "pipeline", "expireAfterSeconds", "timeseries",
		"changeStreamPreAndPostImages", "cappedSize", "cappedMax", "dryRun"), Write: []string{majority60s, majority}, Needs: []Privilege{onAll("collMod", "find")}, Why: "collMod"},
	{Name: "convertToCapped", By: Client, On: OnClientData, Always: []string{"size"}, May: fromClient(), Write: []string{majority60s, majority},
		Needs: []Privilege{onAll("convertToCapped")}, Without: failsWith13, Why: "convertToCapped"},
	{Name: "planCacheClear", By: Client, On: OnClientData, May: fromClient("query", "sort", "projection", "collation"),
		Needs: []Privilege{onAll("planCacheWrite")}, Without: failsWith13, Why: "planCacheClear"},
	{Name: "planCacheListFilters", By: Client, On: OnClientData, May: fromClient(), Needs: []Privilege{onAll("planCacheIndexFilter")}, Without: failsWith13, Why: "planCacheListFilters"},
	{Name: "planCacheClearFilters", By: Client, On: OnClientData, May: fromClient("query", "sort", "projection", "collation"),
		Needs: []Privilege{onAll("planCacheIndexFilter")}, Without: failsWith13, Why: "planCacheClearFilters"},
	{Name: "planCacheSetFilter", By: Client, On: OnClientData, May: fromClient("query", "sort", "projection", "collation", "indexes"),
		Needs: []Privilege{onAll("planCacheIndexFilter")}, Without: failsWith13, Why: "planCacheSetFilter"},
	{Name: "collStats", By: Client, On: OnClientData, May: fromClient("scale"), Needs: []Privilege{onAll("collStats")}, Without: failsWith13, Why: "collStats"},
	{Name: "validate", By: Client, On: OnClientData, May: fromClient("full", "repair", "metadata", "checkBSONConformance", "scandata", "background"), Needs: []Privilege{onAll("validate")}, Without: failsWith13,
		Newer: map[string]string{"checkBSONConformance": "6.2"}, Why: "validate"},
}
