package commands

// What drivers add to their own commands: the session, its time, a retryable write's number, the time left.
var (
	session = []string{"lsid", "$clusterTime", "maxTimeMS"}
	retried = []string{"lsid", "$clusterTime", "maxTimeMS", "txnNumber"}
)

func with(list []string, more ...string) []string { return append(list[:len(list):len(list)], more...) }

// The names of concerns, as concern writes them.
const (
	majority        = "majority"
	linearizable    = "linearizable"
	majorityAfter   = "majority + afterClusterTime"
	localLevel      = "local"
	majority60s     = "majority + wtimeout"
	noAccessControl = "the test's servers have no access control"
)

var driverRows = []Row{
	{Name: "isMaster", By: Driver, On: Everywhere, Always: []string{"helloOk"},
		May: []string{"backpressure", "client", "compression", "maxTimeMS", "saslSupportedMechs", "speculativeAuthenticate", "topologyVersion", "maxAwaitTimeMS"},
		Why: "the first message of a connection (OP_QUERY); servers ignore fields that they do not know, such as backpressure"},
	{Name: "hello", By: Driver, On: OnAdmin, Always: []string{"helloOk"},
		May: []string{"backpressure", "client", "compression", "maxTimeMS", "saslSupportedMechs", "speculativeAuthenticate", "topologyVersion", "maxAwaitTimeMS", "$readPreference", "$clusterTime"},
		Why: "discovery: which member is the primary, streamed"},
	{Name: "saslStart", By: Driver, On: Everywhere, Always: []string{"mechanism", "payload"}, May: []string{"autoAuthorize", "options"},
		Why: "authentication by SCRAM", Unseen: noAccessControl},
	{Name: "saslContinue", By: Driver, On: Everywhere, Always: []string{"conversationId", "payload"},
		Why: "authentication by SCRAM", Unseen: noAccessControl},
	{Name: "authenticate", By: Driver, On: Everywhere, Always: []string{"mechanism"}, May: []string{"user"},
		Why: "authentication by certificate", Unseen: noAccessControl},
	{Name: "endSessions", By: Driver, On: OnAdmin, Always: []string{"maxTimeMS"}, May: []string{"$clusterTime", "$readPreference"},
		Why: "the sessions of the proxy's own reads and writes, when it ends"},
}

var startRows = []Row{
	{Name: "buildInfo", By: Start, On: OnAdmin, Why: "the server's version"},
	{Name: "connectionStatus", By: Start, On: OnAdmin, Always: []string{"showPrivileges"},
		Why: "who the proxy is on the backend, and whether its privileges suffice"},
	{Name: "connectionStatus", By: Router, On: OnAdmin, Why: "under which user the backend keeps the proxy's sessions"},
	{Name: "getParameter", By: Start, On: OnAdmin, Always: []string{"featureCompatibilityVersion"},
		Needs: []Privilege{onCluster("getParameter")}, Without: "the feature compatibility version is not told",
		Why: "the feature compatibility version"},
	{Name: "getDefaultRWConcern", By: Start, On: OnAdmin, SetOnly: true, Needs: []Privilege{onCluster("getDefaultRWConcern")},
		Why: "the default concerns, which a backend that joins the fleet is given; clients' getDefaultRWConcern, asked of the catalog's backend"},
	{Name: "setDefaultRWConcern", By: Start, On: OnAdmin, Always: nil, May: []string{"defaultReadConcern", "defaultWriteConcern"}, Write: []string{majority}, SetOnly: true,
		Needs: []Privilege{onCluster("setDefaultRWConcern")}, Without: "a backend that joins a fleet whose defaults were set does not join",
		Why: "the same, given to it", Unseen: unseenBesideStandalone},
	{Name: "listDatabases", By: Start, On: OnAdmin, Always: []string{"nameOnly"}, May: with(session, "filter"), Needs: []Privilege{onCluster("listDatabases")},
		Why: "which databases a backend has: to adopt them, and to see that it is of this fleet"},
	{Name: "listCollections", By: Start, On: Everywhere, Always: []string{"nameOnly", "filter", "cursor"}, May: session,
		Needs: []Privilege{onAll("listCollections"), onDB("config", "listCollections"), onDB("local", "listCollections")},
		Why:   "which collections a database has: to adopt it, to see that a backend is of this fleet, and to sweep partitions that no map names"},
	{Name: "hello", By: Start, On: OnAdmin, May: with(session), Why: "whether the catalog's backend is a replica set"},
}

var catalogRows = []Row{
	{Name: "find", By: Catalog, On: OnCatalog, Always: []string{"filter", "lsid"}, May: []string{"$clusterTime", "maxTimeMS", "limit", "singleBatch", "sort"},
		Read: []string{majority, linearizable}, SetOnly: true, Needs: []Privilege{onDB(catalogDB, "find")},
		Why: "maps, reshapes, settings; linearizable where somebody else may have won an insert"},
	{Name: "aggregate", By: Catalog, On: OnCatalog, Stage: "$sort", Always: []string{"pipeline", "cursor", "lsid"}, May: session, Read: []string{majority}, SetOnly: true,
		Needs: []Privilege{onDB(catalogDB, "find")}, Why: "the newest map of every collection"},
	{Name: "aggregate", By: Catalog, On: OnCatalog, Stage: "$changeStream", Always: []string{"pipeline", "cursor", "lsid"}, May: session, Read: []string{majority}, SetOnly: true,
		Needs: []Privilege{onDB(catalogDB, "find", "changeStream")}, Why: "changes of the catalog, as they happen"},
	{Name: "getMore", By: Catalog, On: OnCatalog, Always: []string{"collection", "lsid"}, May: with(session, "batchSize"), SetOnly: true, Why: "the same"},
	{Name: "killCursors", By: Catalog, On: OnCatalog, Always: []string{"cursors", "lsid"}, May: session, SetOnly: true, Why: "the same, when it ends", Unseen: unseenStreamEnd},
	{Name: "distinct", By: Catalog, On: OnCatalog, Always: []string{"key", "query", "lsid"}, May: session, Read: []string{linearizable}, SetOnly: true,
		Needs: []Privilege{onDB(catalogDB, "find")}, Why: "which collections have a map, right before something is dropped"},
	{Name: "insert", By: Catalog, On: OnCatalog, Always: []string{"documents", "ordered", "lsid"}, May: retried, Write: []string{majority}, SetOnly: true,
		Needs: []Privilege{onDB(catalogDB, "insert")}, Why: "maps and records of reshapes; the insert of a map is the flip"},
	{Name: "insert", By: Catalog, On: OnCatalog, Always: []string{"documents", "ordered", "lsid", "txnNumber", "startTransaction", "autocommit"}, May: session,
		SetOnly: true, Needs: []Privilege{onDB(catalogDB, "insert")}, Why: "two maps at once, in a transaction (renameCollection)"},
	{Name: "commitTransaction", By: Catalog, On: OnAdmin, Always: []string{"lsid", "txnNumber", "autocommit", "$clusterTime"}, May: []string{"maxTimeMS", "recoveryToken"}, Write: []string{majority, majority60s}, SetOnly: true,
		Why: "the end of that transaction"},
	{Name: "abortTransaction", By: Catalog, On: OnAdmin, Always: []string{"lsid", "txnNumber", "autocommit", "$clusterTime"}, May: []string{"maxTimeMS"}, Write: []string{majority}, SetOnly: true,
		Why: "the same, where an insert of it failed", Unseen: "two proxies would have to rename to one name at the same moment"},
	{Name: "update", By: Catalog, On: OnCatalog, Always: []string{"updates", "ordered", "lsid"}, May: retried, Write: []string{majority}, SetOnly: true,
		Needs: []Privilege{onDB(catalogDB, "insert", "update")}, Why: "records of reshapes (compare-and-swap), backends, databases, settings, the list of proxies"},
	{Name: "findAndModify", By: Catalog, On: OnCatalog, Always: []string{"query", "update", "new", "lsid"}, May: with(retried, "upsert"), Write: []string{majority}, SetOnly: true,
		Needs: []Privilege{onDB(catalogDB, "find", "insert", "update")}, Why: "the counter of physical names; taking a reshape over"},
	{Name: "delete", By: Catalog, On: OnCatalog, Always: []string{"deletes", "ordered", "lsid"}, May: retried, Write: []string{majority}, SetOnly: true,
		Needs: []Privilege{onDB(catalogDB, "remove")}, Why: "records that are done, maps that are old"},
}

var boardRows = []Row{
	{Name: "find", By: Board, On: OnBoard, Always: []string{"filter", "lsid"}, May: with(session, "limit", "singleBatch", "sort"), Read: []string{majority, majorityAfter},
		Needs: []Privilege{onDB(memberDB, "find")}, Why: "instances, closings, answers, floors, whose the backend is, what became of each physical collection"},
	{Name: "aggregate", By: Board, On: OnBoard, Stage: "$changeStream", Always: []string{"pipeline", "cursor", "lsid"}, May: session, Read: []string{majority}, SetOnly: true,
		Needs: []Privilege{onDB(memberDB, "find", "changeStream")}, Why: "closings, as they are written"},
	{Name: "aggregate", By: Board, On: OnBoard, Stage: "$match", Always: []string{"pipeline", "cursor", "lsid"}, May: session, Read: []string{majority, majorityAfter},
		Needs: []Privilege{onDB(memberDB, "find")}, Why: "addShard: whether the new backend is one of the fleet under another address"},
	{Name: "getMore", By: Board, On: OnBoard, Always: []string{"collection", "lsid"}, May: with(session, "batchSize"), SetOnly: true, Why: "the stream of closings"},
	{Name: "killCursors", By: Board, On: OnBoard, Always: []string{"cursors", "lsid"}, May: session, SetOnly: true, Why: "the same, when it ends", Unseen: unseenStreamEnd},
	{Name: "insert", By: Board, On: OnBoard, Always: []string{"documents", "ordered", "lsid"}, May: retried, Write: []string{majority},
		Needs: []Privilege{onDB(memberDB, "insert")}, Why: "an instance, a closing, an answer, a marker"},
	{Name: "update", By: Board, On: OnBoard, Always: []string{"updates", "ordered", "lsid"}, May: retried, Write: []string{majority},
		Needs: []Privilege{onDB(memberDB, "insert", "update")}, Why: "leases, ends of instances, floors"},
	{Name: "findAndModify", By: Board, On: OnBoard, Always: []string{"query", "update", "new", "lsid"}, May: with(retried, "upsert"), Write: []string{majority},
		Needs: []Privilege{onDB(memberDB, "find", "insert", "update")}, Why: "whose the backend is and by which id; leases; that a collection may be dropped"},
	{Name: "delete", By: Board, On: OnBoard, Always: []string{"deletes", "ordered", "lsid"}, May: retried, Write: []string{majority},
		Needs: []Privilege{onDB(memberDB, "remove")}, Why: "closings, answers and markers that are done; the fleet's mark (removeShard)"},
	{Name: "replSetGetConfig", By: Board, On: OnAdmin, Needs: []Privilege{onCluster("replSetGetConfig")},
		Without: "a lease is as long as the servers' default election timeout needs, and a set initiated anew is known by the proxy's own mark alone",
		Why:     "the set's own id, and its election timeout, which a lease must outlast"},
	{Name: "getParameter", By: Board, On: OnAdmin, Always: []string{"transactionLifetimeLimitSeconds"}, Needs: []Privilege{onCluster("getParameter")},
		Without: "after the death of a proxy that had transactions open, a change of a map waits two minutes for them",
		Why:     "how long a dead proxy's transactions may live"},
}

var splitterRows = []Row{
	{Name: "listDatabases", By: Splitter, On: OnAdmin, May: []string{"nameOnly"}, Needs: []Privilege{onCluster("listDatabases")},
		Why: "how full a backend is; what a sweep looks at"},
	{Name: "listCollections", By: Splitter, On: OnClientData, Always: []string{"filter"}, Needs: []Privilege{onAll("listCollections")}, Why: "a collection's options"},
	{Name: "listCollections", By: Splitter, On: OnClientData, Always: []string{"filter", "cursor", "lsid"}, May: session, Needs: []Privilege{onAll("listCollections")},
		Why: "what movePrimary has to move"},
	{Name: "listIndexes", By: Splitter, On: OnClientData, Always: []string{"cursor"}, Needs: []Privilege{onAll("listIndexes")},
		Why: "a collection's indexes; clients' listIndexes"},
	{Name: "collStats", By: Splitter, On: OnClientData, Needs: []Privilege{onAll("collStats")}, Why: "how large a partition is; clients' $shardedDataDistribution"},
	{Name: "count", By: Splitter, On: OnClientData, Always: []string{"lsid"}, May: session, Read: []string{majority}, Needs: []Privilege{onAll("find")},
		Why: "how many documents a copy has before it"},
	{Name: "find", By: Splitter, On: OnClientData, Always: []string{"filter", "batchSize", "lsid"}, May: []string{"sort", "allowDiskUse"}, Read: []string{majority},
		Needs: []Privilege{onAll("find")}, Why: "the copy, and the comparison in the order of _id"},
	{Name: "find", By: Splitter, On: OnClientData, Always: []string{"filter", "limit", "singleBatch", "projection"}, Needs: []Privilege{onAll("find")}, Why: "whether a collection is empty"},
	{Name: "find", By: Splitter, On: OnClientData, Always: []string{"filter", "batchSize", "lsid"}, May: session, Read: []string{majorityAfter, majority}, SetOnly: true,
		Needs: []Privilege{onAll("find")}, Why: "documents that changed, read again at the time of their change", Unseen: unseenFollowing},
	{Name: "aggregate", By: Splitter, On: OnAdmin, Stage: "$changeStream", Always: []string{"pipeline", "cursor", "lsid"}, May: session, SetOnly: true,
		Needs: []Privilege{onAll("find", "changeStream")}, Why: "what changes in the inputs, and the markers, in one order (allChangesForCluster)"},
	{Name: "getMore", By: Splitter, On: OnAdmin, Always: []string{"collection", "lsid"}, May: with(session, "batchSize"), SetOnly: true, Why: "the same"},
	{Name: "killCursors", By: Splitter, On: OnAdmin, Always: []string{"cursors", "lsid"}, May: session, SetOnly: true, Why: "the same, when it ends"},
	{Name: "getMore", By: Splitter, On: OnClientData, Always: []string{"collection", "batchSize", "lsid"}, May: []string{"comment", "$clusterTime", "maxTimeMS"},
		Why: "the rest of such a find, and of clients' cursors over several partitions"},
	{Name: "killCursors", By: Splitter, On: OnClientData, Always: []string{"cursors", "lsid"}, May: []string{"$clusterTime"},
		Why: "a find that is given up, the copy's or a client's"},
	{Name: "aggregate", By: Splitter, On: OnClientData, Stage: "$sample", Always: []string{"pipeline", "cursor", "allowDiskUse", "lsid"}, May: session, Read: []string{majority},
		Needs: []Privilege{onAll("find")}, Why: "the middle of a partition's shard key values, of a large one", Unseen: "it takes more documents than a test should write"},
	{Name: "aggregate", By: Splitter, On: OnClientData, Stage: "$project", Always: []string{"pipeline", "cursor", "allowDiskUse", "lsid"}, May: session, Read: []string{majority},
		Needs: []Privilege{onAll("find")}, Why: "the same, of a small one"},
	{Name: "create", By: Splitter, On: OnClientData, May: createOptions, Write: []string{majority}, Needs: []Privilege{onAll("createCollection", "find")}, Why: "outputs"},
	{Name: "createIndexes", By: Splitter, On: OnClientData, Always: []string{"indexes"}, Write: []string{majority}, Needs: []Privilege{onAll("createIndex")}, Why: "their indexes"},
	{Name: "dropIndexes", By: Splitter, On: OnClientData, Always: []string{"index"}, Write: []string{majority}, Needs: []Privilege{onAll("dropIndex")},
		Why: "indexes of outputs that an input has lost meanwhile", Unseen: "a client would have to drop an index in the middle of a copy"},
	{Name: "collMod", By: Splitter, On: OnClientData, May: []string{"index", "validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages", "pipeline", "viewOn"}, Write: []string{majority},
		Needs: []Privilege{onAll("collMod", "find")}, Why: "outputs' expiry of documents, after the flip; options of an input that changed meanwhile"},
	{Name: "insert", By: Splitter, On: OnClientData, Always: []string{"documents", "ordered", "bypassDocumentValidation"}, May: []string{"lsid", "txnNumber", "collectionUUID"}, Write: []string{majority},
		Needs: []Privilege{onAll("insert", "bypassDocumentValidation")}, Why: "the copy, into the collection that was made for it and no other"},
	{Name: "update", By: Splitter, On: OnClientData, Always: []string{"updates", "ordered", "bypassDocumentValidation"}, May: []string{"lsid", "txnNumber"}, Write: []string{majority},
		Needs: []Privilege{onAll("update", "bypassDocumentValidation")}, Why: "zero timestamps, which an insert replaces by the present time", Unseen: "a document would have to have one by an update"},
	{Name: "delete", By: Splitter, On: OnClientData, Always: []string{"deletes", "ordered", "lsid"}, May: retried, Write: []string{majority},
		Needs: []Privilege{onAll("remove")}, Why: "following: a document that changed is deleted from the outputs and inserted into its own", Unseen: unseenFollowing},
	{Name: "drop", By: Splitter, On: OnClientData, May: []string{"collectionUUID"}, Write: []string{majority}, Needs: []Privilege{onAll("dropCollection")}, Why: "inputs after the flip, outputs of attempts that failed"},
	{Name: "delete", By: Splitter, On: OnBoard, Always: []string{"deletes"}, Write: []string{majority}, Needs: []Privilege{onDB(memberDB, "remove")},
		Why: "a delete of nothing, which waits until a majority has all that came before it", Unseen: "a command would have to end unconfirmed"},
	{Name: "ping", By: Splitter, On: OnAdmin, SetOnly: true, Why: "a backend's operationTime at the flip"},
}

// bypassEmptyTs is the one field that not every supported server takes.
const bypassEmptyTs = "bypassEmptyTsReplacement"

var bypassKnown = map[string]string{bypassEmptyTs: "8.0, and late releases of 7.0 and 6.0"}

// Why the recording test need not see a row.
const (
	unseenFollowing        = "it takes writes at the very moment of a copy"
	unseenBesideStandalone = "it is refused where a backend is a standalone, and the test has one"
	unseenStreamEnd        = "a stream ends with its proxy or with its server"
)

// createOptions are the options of collections and views, as listCollections tells them.
var createOptions = []string{"capped", "size", "max", "timeseries", "expireAfterSeconds", "clusteredIndex", "changeStreamPreAndPostImages",
	"storageEngine", "validator", "validationLevel", "validationAction", "indexOptionDefaults", "viewOn", "pipeline", "collation"}
