package wire

import "strconv"

// Code is a MongoDB error code. Clients match on it, never on a text.
type Code int32

// The codes that have a name; all others are shown as "Location<number>".
const (
	InternalError                            Code = 1
	BadValue                                 Code = 2
	HostUnreachable                          Code = 6
	HostNotFound                             Code = 7
	FailedToParse                            Code = 9
	UserNotFound                             Code = 11
	UnsupportedFormat                        Code = 12
	Unauthorized                             Code = 13
	TypeMismatch                             Code = 14
	Overflow                                 Code = 15
	InvalidLength                            Code = 16
	ProtocolError                            Code = 17
	AuthenticationFailed                     Code = 18
	IllegalOperation                         Code = 20
	InvalidBSON                              Code = 22
	AlreadyInitialized                       Code = 23
	LockTimeout                              Code = 24
	NamespaceNotFound                        Code = 26
	IndexNotFound                            Code = 27
	CursorNotFound                           Code = 43
	LockBusy                                 Code = 46
	NamespaceExists                          Code = 48
	MaxTimeMSExpired                         Code = 50
	NotSingleValueField                      Code = 54
	CommandNotFound                          Code = 59
	ShardKeyNotFound                         Code = 61
	WriteConcernFailed                       Code = 64
	MultipleErrorsOccurred                   Code = 65
	ImmutableField                           Code = 66
	CannotCreateIndex                        Code = 67
	IndexAlreadyExists                       Code = 68
	ShardNotFound                            Code = 70
	ReplicaSetNotFound                       Code = 71
	InvalidOptions                           Code = 72
	InvalidNamespace                         Code = 73
	NoReplicationEnabled                     Code = 76
	UnknownReplWriteConcern                  Code = 79
	NoProgressMade                           Code = 82
	IndexOptionsConflict                     Code = 85
	IndexKeySpecsConflict                    Code = 86
	CannotSplit                              Code = 87
	NetworkTimeout                           Code = 89
	ShutdownInProgress                       Code = 91
	OperationFailed                          Code = 96
	UnsatisfiableWriteConcern                Code = 100
	LockFailed                               Code = 107
	WriteConflict                            Code = 112
	CommandNotSupported                      Code = 115
	ConflictingOperationInProgress           Code = 117
	NamespaceNotSharded                      Code = 118
	NotAReplicaSet                           Code = 123
	CommandFailed                            Code = 125
	FailedToSatisfyReadPreference            Code = 133
	ReadConcernMajorityNotAvailableYet       Code = 134
	CursorInUse                              Code = 143
	ExceededMemoryLimit                      Code = 146
	StaleEpoch                               Code = 150
	MaxStalenessOutOfRange                   Code = 160
	ZoneStillInUse                           Code = 163
	ViewDepthLimitExceeded                   Code = 165
	CommandNotSupportedOnView                Code = 166
	OptionNotSupportedOnView                 Code = 167
	InvalidPipelineOperator                  Code = 168
	CommandOnShardedViewNotSupportedOnMongod Code = 169
	QueryPlanKilled                          Code = 175
	ZoneNotFound                             Code = 177
	RangeOverlapConflict                     Code = 178
	InvalidViewDefinition                    Code = 182
	ClientMetadataMissingField               Code = 183
	ClientMetadataAppNameTooLarge            Code = 184
	ClientMetadataDocumentTooLarge           Code = 185
	ClientMetadataCannotBeMutated            Code = 186
	IncompatibleServerVersion                Code = 188
	PrimarySteppedDown                       Code = 189
	NoShardingEnabled                        Code = 193
	BalancerInterrupted                      Code = 194
	NetworkInterfaceExceededTimeLimit        Code = 202
	TimeProofMismatch                        Code = 204
	ClusterTimeFailsRateLimiter              Code = 205
	KeyNotFound                              Code = 211
	IncompleteTransactionHistory             Code = 217
	IllegalOpMsgFlag                         Code = 223
	TransactionTooOld                        Code = 225
	MaxSubPipelineDepthExceeded              Code = 232
	TooManyDocumentSequences                 Code = 233
	RetryChangeStream                        Code = 234
	CursorKilled                             Code = 237
	NotImplemented                           Code = 238
	SnapshotTooOld                           Code = 239
	SnapshotUnavailable                      Code = 246
	StaleDbVersion                           Code = 249
	StaleChunkHistory                        Code = 250
	NoSuchTransaction                        Code = 251
	TransactionCommitted                     Code = 256
	TransactionTooLarge                      Code = 257
	InvalidResumeToken                       Code = 260
	TooManyLogicalSessions                   Code = 261
	ExceededTimeLimit                        Code = 262
	OperationNotSupportedInTransaction       Code = 263
	PreparedTransactionInProgress            Code = 267
	MigrationConflict                        Code = 272
	ClientDisconnect                         Code = 279
	ChangeStreamFatalError                   Code = 280
	WouldChangeOwningShard                   Code = 283
	ChangeStreamHistoryLost                  Code = 286
	ChecksumMismatch                         Code = 288
	TransactionExceededLifetimeLimitSeconds  Code = 290
	QueryExceededMemoryLimitNoDiskUseAllowed Code = 292
	ShardInvalidatedForTargeting             Code = 304
	ConnectionPoolExpired                    Code = 317
	MovePrimaryInProgress                    Code = 319
	APIVersionError                          Code = 322
	APIStrictError                           Code = 323
	MechanismUnavailable                     Code = 334
	ReshardCollectionInProgress              Code = 338
	ShardCannotRefreshDueToLocksHeld         Code = 343
	APIMismatchError                         Code = 347
	UnsupportedOpQueryCommand                Code = 352
	LoadBalancerSupportMismatch              Code = 354
	InternalTransactionNotSupported          Code = 358
	CollectionUUIDMismatch                   Code = 361
	CannotDropShardKeyIndex                  Code = 370
	UserWritesBlocked                        Code = 371
	ConnectionError                          Code = 384
	ReauthenticationRequired                 Code = 391
	IngressRequestRateLimitExceeded          Code = 462
	SocketException                          Code = 9001
	NotWritablePrimary                       Code = 10107
	BSONObjectTooLarge                       Code = 10334
	DuplicateKey                             Code = 11000
	InterruptedAtShutdown                    Code = 11600
	Interrupted                              Code = 11601
	InterruptedDueToReplStateChange          Code = 11602
	DatabaseDifferCase                       Code = 13297
	StaleConfig                              Code = 13388
	NotPrimaryNoSecondaryOk                  Code = 13435
	NotPrimaryOrSecondary                    Code = 13436
	NamespaceCannotBeSharded                 Code = 28769
	NotARetryableWriteCommand                Code = 50768
	BackupCursorOpenConflictWithCheckpoint   Code = 50915
)

var codeNames = map[Code]string{
	InternalError:                            "InternalError",
	BadValue:                                 "BadValue",
	HostUnreachable:                          "HostUnreachable",
	HostNotFound:                             "HostNotFound",
	FailedToParse:                            "FailedToParse",
	UserNotFound:                             "UserNotFound",
	UnsupportedFormat:                        "UnsupportedFormat",
	Unauthorized:                             "Unauthorized",
	TypeMismatch:                             "TypeMismatch",
	Overflow:                                 "Overflow",
	InvalidLength:                            "InvalidLength",
	ProtocolError:                            "ProtocolError",
	AuthenticationFailed:                     "AuthenticationFailed",
	IllegalOperation:                         "IllegalOperation",
	InvalidBSON:                              "InvalidBSON",
	AlreadyInitialized:                       "AlreadyInitialized",
	LockTimeout:                              "LockTimeout",
	NamespaceNotFound:                        "NamespaceNotFound",
	IndexNotFound:                            "IndexNotFound",
	CursorNotFound:                           "CursorNotFound",
	LockBusy:                                 "LockBusy",
	NamespaceExists:                          "NamespaceExists",
	MaxTimeMSExpired:                         "MaxTimeMSExpired",
	NotSingleValueField:                      "NotSingleValueField",
	CommandNotFound:                          "CommandNotFound",
	ShardKeyNotFound:                         "ShardKeyNotFound",
	WriteConcernFailed:                       "WriteConcernFailed",
	MultipleErrorsOccurred:                   "MultipleErrorsOccurred",
	ImmutableField:                           "ImmutableField",
	CannotCreateIndex:                        "CannotCreateIndex",
	IndexAlreadyExists:                       "IndexAlreadyExists",
	ShardNotFound:                            "ShardNotFound",
	ReplicaSetNotFound:                       "ReplicaSetNotFound",
	InvalidOptions:                           "InvalidOptions",
	InvalidNamespace:                         "InvalidNamespace",
	NoReplicationEnabled:                     "NoReplicationEnabled",
	UnknownReplWriteConcern:                  "UnknownReplWriteConcern",
	NoProgressMade:                           "NoProgressMade",
	IndexOptionsConflict:                     "IndexOptionsConflict",
	IndexKeySpecsConflict:                    "IndexKeySpecsConflict",
	CannotSplit:                              "CannotSplit",
	NetworkTimeout:                           "NetworkTimeout",
	ShutdownInProgress:                       "ShutdownInProgress",
	OperationFailed:                          "OperationFailed",
	UnsatisfiableWriteConcern:                "UnsatisfiableWriteConcern",
	LockFailed:                               "LockFailed",
	WriteConflict:                            "WriteConflict",
	CommandNotSupported:                      "CommandNotSupported",
	ConflictingOperationInProgress:           "ConflictingOperationInProgress",
	NamespaceNotSharded:                      "NamespaceNotSharded",
	NotAReplicaSet:                           "NotAReplicaSet",
	CommandFailed:                            "CommandFailed",
	FailedToSatisfyReadPreference:            "FailedToSatisfyReadPreference",
	ReadConcernMajorityNotAvailableYet:       "ReadConcernMajorityNotAvailableYet",
	CursorInUse:                              "CursorInUse",
	ExceededMemoryLimit:                      "ExceededMemoryLimit",
	StaleEpoch:                               "StaleEpoch",
	MaxStalenessOutOfRange:                   "MaxStalenessOutOfRange",
	ZoneStillInUse:                           "ZoneStillInUse",
	ViewDepthLimitExceeded:                   "ViewDepthLimitExceeded",
	CommandNotSupportedOnView:                "CommandNotSupportedOnView",
	OptionNotSupportedOnView:                 "OptionNotSupportedOnView",
	InvalidPipelineOperator:                  "InvalidPipelineOperator",
	CommandOnShardedViewNotSupportedOnMongod: "CommandOnShardedViewNotSupportedOnMongod",
	QueryPlanKilled:                          "QueryPlanKilled",
	ZoneNotFound:                             "ZoneNotFound",
	RangeOverlapConflict:                     "RangeOverlapConflict",
	InvalidViewDefinition:                    "InvalidViewDefinition",
	ClientMetadataMissingField:               "ClientMetadataMissingField",
	ClientMetadataAppNameTooLarge:            "ClientMetadataAppNameTooLarge",
	ClientMetadataDocumentTooLarge:           "ClientMetadataDocumentTooLarge",
	ClientMetadataCannotBeMutated:            "ClientMetadataCannotBeMutated",
	IncompatibleServerVersion:                "IncompatibleServerVersion",
	PrimarySteppedDown:                       "PrimarySteppedDown",
	NoShardingEnabled:                        "NoShardingEnabled",
	BalancerInterrupted:                      "BalancerInterrupted",
	NetworkInterfaceExceededTimeLimit:        "NetworkInterfaceExceededTimeLimit",
	TimeProofMismatch:                        "TimeProofMismatch",
	ClusterTimeFailsRateLimiter:              "ClusterTimeFailsRateLimiter",
	KeyNotFound:                              "KeyNotFound",
	IncompleteTransactionHistory:             "IncompleteTransactionHistory",
	IllegalOpMsgFlag:                         "IllegalOpMsgFlag",
	TransactionTooOld:                        "TransactionTooOld",
	MaxSubPipelineDepthExceeded:              "MaxSubPipelineDepthExceeded",
	TooManyDocumentSequences:                 "TooManyDocumentSequences",
	RetryChangeStream:                        "RetryChangeStream",
	CursorKilled:                             "CursorKilled",
	NotImplemented:                           "NotImplemented",
	SnapshotTooOld:                           "SnapshotTooOld",
	SnapshotUnavailable:                      "SnapshotUnavailable",
	StaleDbVersion:                           "StaleDbVersion",
	StaleChunkHistory:                        "StaleChunkHistory",
	NoSuchTransaction:                        "NoSuchTransaction",
	TransactionCommitted:                     "TransactionCommitted",
	TransactionTooLarge:                      "TransactionTooLarge",
	InvalidResumeToken:                       "InvalidResumeToken",
	TooManyLogicalSessions:                   "TooManyLogicalSessions",
	ExceededTimeLimit:                        "ExceededTimeLimit",
	OperationNotSupportedInTransaction:       "OperationNotSupportedInTransaction",
	PreparedTransactionInProgress:            "PreparedTransactionInProgress",
	MigrationConflict:                        "MigrationConflict",
	ClientDisconnect:                         "ClientDisconnect",
	ChangeStreamFatalError:                   "ChangeStreamFatalError",
	WouldChangeOwningShard:                   "WouldChangeOwningShard",
	ChangeStreamHistoryLost:                  "ChangeStreamHistoryLost",
	ChecksumMismatch:                         "ChecksumMismatch",
	TransactionExceededLifetimeLimitSeconds:  "TransactionExceededLifetimeLimitSeconds",
	QueryExceededMemoryLimitNoDiskUseAllowed: "QueryExceededMemoryLimitNoDiskUseAllowed",
	ShardInvalidatedForTargeting:             "ShardInvalidatedForTargeting",
	ConnectionPoolExpired:                    "ConnectionPoolExpired",
	MovePrimaryInProgress:                    "MovePrimaryInProgress",
	APIVersionError:                          "APIVersionError",
	APIStrictError:                           "APIStrictError",
	MechanismUnavailable:                     "MechanismUnavailable",
	ReshardCollectionInProgress:              "ReshardCollectionInProgress",
	ShardCannotRefreshDueToLocksHeld:         "ShardCannotRefreshDueToLocksHeld",
	APIMismatchError:                         "APIMismatchError",
	UnsupportedOpQueryCommand:                "UnsupportedOpQueryCommand",
	LoadBalancerSupportMismatch:              "LoadBalancerSupportMismatch",
	InternalTransactionNotSupported:          "InternalTransactionNotSupported",
	CollectionUUIDMismatch:                   "CollectionUUIDMismatch",
	CannotDropShardKeyIndex:                  "CannotDropShardKeyIndex",
	UserWritesBlocked:                        "UserWritesBlocked",
	ConnectionError:                          "ConnectionError",
	ReauthenticationRequired:                 "ReauthenticationRequired",
	IngressRequestRateLimitExceeded:          "IngressRequestRateLimitExceeded",
	SocketException:                          "SocketException",
	NotWritablePrimary:                       "NotWritablePrimary",
	BSONObjectTooLarge:                       "BSONObjectTooLarge",
	DuplicateKey:                             "DuplicateKey",
	InterruptedAtShutdown:                    "InterruptedAtShutdown",
	Interrupted:                              "Interrupted",
	InterruptedDueToReplStateChange:          "InterruptedDueToReplStateChange",
	DatabaseDifferCase:                       "DatabaseDifferCase",
	StaleConfig:                              "StaleConfig",
	NotPrimaryNoSecondaryOk:                  "NotPrimaryNoSecondaryOk",
	NotPrimaryOrSecondary:                    "NotPrimaryOrSecondary",
	NamespaceCannotBeSharded:                 "NamespaceCannotBeSharded",
	NotARetryableWriteCommand:                "NotARetryableWriteCommand",
	BackupCursorOpenConflictWithCheckpoint:   "BackupCursorOpenConflictWithCheckpoint",
}

// Name returns the code's name as replies show it in codeName.
func (c Code) Name() string {
	if n, ok := codeNames[c]; ok {
		return n
	}
	return "Location" + strconv.Itoa(int(c))
}

// NotPrimary reports the codes by which a server says that it is not, or no longer, the primary.
func (c Code) NotPrimary() bool {
	switch c {
	case PrimarySteppedDown, NotWritablePrimary, InterruptedDueToReplStateChange, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary:
		return true
	}
	return false
}

// Shutdown reports the codes by which a server says that it is going away.
func (c Code) Shutdown() bool { return c == ShutdownInProgress || c == InterruptedAtShutdown }

// Retriable reports the codes after which a repeated attempt may succeed (mongos-behaviour "RetriableError").
func (c Code) Retriable() bool {
	switch c {
	case HostUnreachable, HostNotFound, NetworkTimeout, ReadConcernMajorityNotAvailableYet, ExceededTimeLimit,
		ConnectionPoolExpired, InternalTransactionNotSupported, ConnectionError, SocketException, BackupCursorOpenConflictWithCheckpoint:
		return true
	}
	return c.NotPrimary() || c.Shutdown()
}
