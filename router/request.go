package router

import (
	"math"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/tag"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey/element"
	"github.com/shardway/shardway/wire"
)

// Request is one command as a client sent it, with the fields that every command shares taken out.
// Its bytes belong to the connection and are valid until the handler returns.
type Request struct {
	Conn *Conn
	// Msg is the parsed message; Msg.Body is the command.
	Msg *wire.Msg
	// Command is its row of the table.
	Command *Command
	// Name is the command's name as the client spelled it.
	Name string
	// DB is $db.
	DB string
	// First is the value of the body's first element.
	First bsoncore.Value

	// Session is the lsid document; nil when absent.
	Session bson.Raw
	// TxnNumber is the number of a retryable write or a transaction; HasTxn says whether there is one.
	TxnNumber int64
	HasTxn    bool
	// InTxn says that autocommit:false was sent: the request belongs to a transaction.
	InTxn bool
	// starts says that startTransaction was sent; txn is the transaction while a statement of it is run.
	starts bool
	txn    *transaction
	// ReadPref is $readPreference; nil when absent, which means primary.
	ReadPref *readpref.ReadPref
	// MaxTime is maxTimeMS; 0 when absent.
	MaxTime time.Duration
	// Comment is the comment; its zero value when absent.
	Comment bsoncore.Value
	// ReadConcern and WriteConcern are those documents; nil when absent.
	ReadConcern, WriteConcern bson.Raw
	// birth is the latest birth of homes that the command names beside the one it is sent to (bornAfter).
	birth bson.Timestamp
	// asNS is the view that the request came for, "" when it reads what it names; viewDepth counts the views on the way.
	asNS      string
	viewDepth int
	// Started is when the request was read.
	Started time.Time
	// help says that only what the command does is asked for, api holds the Stable API's fields.
	help bool
	api  apiFields
	// note is set by handlers for the log of slow requests.
	note string
	// waits is set by handlers that wait on purpose: such a request is not slow.
	waits bool
	// streams is set by hello when its reply is the first of a stream.
	streams bool
}

// Collection returns the collection that the command's first element names, or 73 InvalidNamespace.
func (q *Request) Collection() (string, error) {
	name, ok := q.First.StringValueOK()
	if !ok {
		return "", wire.Errorf(wire.InvalidNamespace, "collection name has invalid type %s", q.First.Type)
	}
	return name, checkCollection(q.DB, name)
}

// NS returns "db.collection" for the collection that the first element names.
func (q *Request) NS() (string, error) {
	name, err := q.Collection()
	if err != nil {
		return "", err
	}
	return q.DB + "." + name, nil
}

// parseShared fills in the fields that every command shares, checking them as the router must (mongos-behaviour §1.5, §8.2).
func (q *Request) parseShared() error {
	var autocommit, start, hasAuto bool
	rem := q.Msg.Body[4:]
	for len(rem) > 1 {
		elem, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			return wire.Errorf(wire.InvalidBSON, "the command is not a valid BSON document")
		}
		rem = rest
		key := elem.KeyBytes()
		if len(key) < 4 {
			continue
		}
		var err error
		switch string(key) {
		case "lsid":
			err = q.parseSession(elem.Value())
		case "txnNumber":
			if elem.Value().Type != bsoncore.TypeInt64 {
				return typeMismatch("txnNumber", elem.Value(), "long")
			}
			q.TxnNumber, q.HasTxn = elem.Value().Int64(), true
		case "autocommit":
			autocommit, hasAuto = isTrue(elem.Value()), true
		case "startTransaction":
			if start = isTrue(elem.Value()); !start {
				err = wire.Errorf(wire.InvalidOptions, "Specifying startTransaction=false is not allowed.")
			}
		case "$readPreference":
			q.ReadPref, err = parseReadPreference(elem.Value())
		case "maxTimeMS":
			q.MaxTime, err = parseMaxTime(elem.Value())
		case "comment":
			q.Comment = elem.Value()
		case "readConcern":
			if q.ReadConcern, err = documentField("readConcern", elem.Value()); err == nil {
				err = checkReadConcern(q.ReadConcern)
			}
		case "writeConcern":
			q.WriteConcern, err = documentField("writeConcern", elem.Value())
		case "help":
			q.help, _ = elem.Value().BooleanOK()
		case "apiVersion":
			q.api.version = elem.Value()
		case "apiStrict":
			q.api.hasStrict = true
			q.api.strict, err = boolValue("apiStrict", elem.Value())
		case "apiDeprecationErrors":
			q.api.hasDeprecation = true
			q.api.deprecation, err = boolValue("apiDeprecationErrors", elem.Value())
		case "$maxTimeMs":
			err = wire.Errorf(wire.InvalidOptions, "no such command option $maxTimeMs; use maxTimeMS instead")
		}
		if err != nil {
			return err
		}
	}
	return q.checkTxnFields(autocommit, hasAuto, start)
}

// checkSequences refuses sections of kind 1 that the command does not take: a section is a field, and none is ignored in silence (mongos-behaviour §1.2).
// Those of the handshake, ping and their like ignore fields that they do not know.
func (q *Request) checkSequences() error {
	for _, s := range q.Msg.Sequences {
		if s.Identifier != q.Command.Sequence && !q.Command.NoAuth {
			return wire.Errorf(40415, "BSON field '%s.%s' is an unknown field.", q.Command.Name, strings.ToValidUTF8(s.Identifier, "?"))
		}
	}
	return nil
}

func (q *Request) checkTxnFields(autocommit, hasAuto, start bool) error {
	switch {
	case q.HasTxn && q.Session == nil:
		return wire.Errorf(wire.InvalidOptions, "Transaction number requires a session ID to also be specified")
	case hasAuto && !q.HasTxn:
		return wire.Errorf(wire.InvalidOptions, "'autocommit' field requires a transaction number to also be specified")
	case hasAuto && autocommit:
		return wire.Errorf(wire.InvalidOptions, "Specifying autocommit=true is not allowed.")
	case start && !hasAuto:
		return wire.Errorf(wire.InvalidOptions, "'startTransaction' field requires 'autocommit' field to also be specified")
	case q.HasTxn && q.TxnNumber < 0:
		return wire.Errorf(wire.InvalidOptions, "Transaction number cannot be negative")
	case hasAuto:
		q.InTxn, q.starts = true, start
		return q.checkTransaction()
	case q.HasTxn && q.Command.NoAuth:
		return wire.Errorf(50889, "It is illegal to provide a txnNumber for command %s", q.Name)
	case q.HasTxn && !q.Command.Txn:
		return wire.Errorf(wire.NotARetryableWriteCommand, "txnNumber may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided, and %s is not a retryable write command.", q.Name)
	}
	return nil
}

// plainSession is the length of {id: UUID}, as every driver sends it.
const plainSession = 30

func (q *Request) parseSession(v bsoncore.Value) error {
	doc, ok := v.DocumentOK()
	if !ok {
		return typeMismatch("lsid", v, "object")
	}
	if len(doc) == plainSession && string(doc[4:13]) == "\x05id\x00\x10\x00\x00\x00\x04" && doc[plainSession-1] == 0 {
		q.Session = bson.Raw(doc)
		return nil
	}
	id, found := element.Lookup(doc, "id")
	if !found {
		return wire.Errorf(40414, "BSON field 'OperationSessionInfo.lsid.id' is missing but a required field")
	}
	if sub, data, ok := id.BinaryOK(); !ok || sub != bson.TypeBinaryUUID || len(data) != 16 {
		return typeMismatch("lsid.id", id, "UUID")
	}
	q.Session = bson.Raw(doc)
	return nil
}

func isTrue(v bsoncore.Value) bool {
	if b, ok := v.BooleanOK(); ok {
		return b
	}
	n, ok := v.AsInt64OK()
	return ok && n != 0
}

func boolValue(field string, v bsoncore.Value) (bool, error) {
	b, ok := v.BooleanOK()
	if !ok {
		return false, typeMismatch(field, v, "bool")
	}
	return b, nil
}

func typeMismatch(field string, v bsoncore.Value, want string) error {
	return wire.Errorf(wire.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type '%s'", field, v.Type, want)
}

func documentField(name string, v bsoncore.Value) (bson.Raw, error) {
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, typeMismatch(name, v, "object")
	}
	return bson.Raw(doc), nil
}

// checkReadConcern refuses times: the backends' clocks know nothing of one another, so a backend could wait for another's time for
// ever. The proxy gives clients no operationTime, so that a driver has none to send.
func checkReadConcern(rc bson.Raw) error {
	for _, field := range [...]string{"afterClusterTime", "atClusterTime"} {
		if _, err := bsoncore.Document(rc).LookupErr(field); err == nil {
			return wire.Errorf(wire.InvalidOptions, "readConcern %s is not supported: the backends have no common time", field)
		}
	}
	return nil
}

// parseMaxTime reads maxTimeMS: a whole number from 0 to the largest int32 (2 BadValue otherwise); 0 means none.
func parseMaxTime(v bsoncore.Value) (time.Duration, error) {
	f, ok := v.AsFloat64OK()
	if !ok {
		return 0, typeMismatch("maxTimeMS", v, "number")
	}
	if f != math.Trunc(f) || f < 0 || f > math.MaxInt32 {
		return 0, wire.Errorf(wire.BadValue, "%v value for maxTimeMS is out of range [0, %d]", f, math.MaxInt32)
	}
	return time.Duration(f) * time.Millisecond, nil
}

func parseReadPreference(v bsoncore.Value) (*readpref.ReadPref, error) {
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, typeMismatch("$readPreference", v, "object")
	}
	name, _ := doc.Lookup("mode").StringValueOK()
	mode, err := readpref.ModeFromString(name)
	if err != nil {
		return nil, wire.Errorf(wire.FailedToParse, "Could not parse $readPreference mode '%s'. Only the modes primary, primaryPreferred, secondary, secondaryPreferred and nearest are supported", name)
	}
	if mode == readpref.PrimaryMode {
		return nil, onlyPrimary(doc)
	}
	var opts []readpref.Option
	if tags, ok := doc.Lookup("tags").ArrayOK(); ok {
		sets, err := parseTagSets(tags)
		if err != nil {
			return nil, err
		}
		opts = append(opts, readpref.WithTagSets(sets...))
	}
	if s, ok := doc.Lookup("maxStalenessSeconds").AsInt64OK(); ok && s > 0 {
		if s < 90 {
			return nil, wire.Errorf(wire.MaxStalenessOutOfRange, "maxStalenessSeconds must be at least 90 seconds, got %d", s)
		}
		opts = append(opts, readpref.WithMaxStaleness(time.Duration(s)*time.Second))
	}
	rp, err := readpref.New(mode, opts...)
	if err != nil {
		return nil, wire.Errorf(wire.BadValue, "$readPreference: %v", err)
	}
	return rp, nil
}

// onlyPrimary refuses what says which secondary to read, where none is to be read.
func onlyPrimary(doc bsoncore.Document) error {
	if tags, ok := doc.Lookup("tags").ArrayOK(); ok && len(tags) > 5 {
		if sets, err := tags.Values(); err != nil || len(sets) > 1 || len(sets[0].Data) > 5 {
			return wire.Errorf(wire.BadValue, "Only empty tags are allowed with primary read preference")
		}
	}
	if s, ok := doc.Lookup("maxStalenessSeconds").AsInt64OK(); ok && s > 0 {
		return wire.Errorf(wire.BadValue, "mode must not be 'primary' when maxStalenessSeconds is specified")
	}
	return nil
}

func parseTagSets(arr bsoncore.Array) ([]tag.Set, error) {
	values, err := arr.Values()
	if err != nil {
		return nil, wire.Errorf(wire.FailedToParse, "$readPreference.tags must be an array of documents")
	}
	var sets []tag.Set
	for _, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			return nil, wire.Errorf(wire.FailedToParse, "$readPreference.tags must be an array of documents")
		}
		elems, err := doc.Elements()
		if err != nil {
			return nil, wire.Errorf(wire.FailedToParse, "$readPreference.tags must be an array of documents")
		}
		set := tag.Set{}
		for _, e := range elems {
			s, ok := e.Value().StringValueOK()
			if !ok {
				return nil, wire.Errorf(wire.TypeMismatch, "$readPreference tag values must be strings")
			}
			set = append(set, tag.Tag{Name: e.Key(), Value: s})
		}
		sets = append(sets, set)
	}
	return sets, nil
}
