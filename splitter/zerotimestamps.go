package splitter

import (
	"context"
	"encoding/binary"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// A server stores its own time where an inserted document has Timestamp(0, 0) at its top, but for
// _id. Some servers take a field, bypassEmptyTsReplacement, that keeps the zeros; others refuse an
// insert that has it, patch release by patch release. All servers keep a zero that an update puts
// there. So a document with zeros is inserted, which keeps the places of its fields, and an update
// writes the zeros back before anything else is done with the document. A copy that stops between
// the two is abandoned with its outputs.

// zeros are the names of a document's fields that an insert would change: Timestamp(0, 0) at the
// top, but for _id.
func zeros(doc bson.Raw) []string {
	var names []string
	for rem := []byte(doc[4:]); len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			return names
		}
		rem = rest
		if bsoncore.Type(e[0]) != bsoncore.TypeTimestamp {
			continue
		}
		if v := e[len(e)-8:]; binary.LittleEndian.Uint64(v) == 0 && string(e.KeyBytes()) != "_id" {
			names = append(names, e.Key())
		}
	}
	return names
}

// zeroed is a document of an insertion whose zeros are to be written back.
type zeroed struct {
	// at is the document's place in the insertion.
	at     int
	fields []string
}

// writeZeros writes the zeros back of those documents that the insertion has inserted; refused are
// the places of the others. Equal entries of unique indexes are a duplicateError, as in an
// insertion.
func (r *reshape) writeZeros(ctx context.Context, in *insertion, refused map[int]bool) error {
	cmd := bson.D{{Key: "update", Value: in.h.Physical}, {Key: "ordered", Value: false}, {Key: "bypassDocumentValidation", Value: true}, majority}
	if in.session != nil {
		in.session.txn++
		cmd = append(cmd, bson.E{Key: "lsid", Value: in.session.lsid}, bson.E{Key: "txnNumber", Value: in.session.txn})
	}
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: in.h.DB}))
	if err != nil {
		return err
	}
	at, msg := wire.AppendSequenceStart(append(wire.AppendMsgStart(nil), body...), "updates")
	n := 0
	for _, z := range in.zeros {
		if refused[z.at] {
			continue
		}
		msg = appendZeroing(msg, in.doc(z.at).Lookup("_id"), z.fields)
		n++
	}
	if n == 0 {
		return nil
	}
	wire.EndSequence(msg, at)
	_, err = r.deliver(ctx, in, wire.Seal(msg, 0))
	return err
}

// appendZeroing appends the update statement that sets fields of a document to Timestamp(0, 0),
// each in its place.
func appendZeroing(dst []byte, id bson.RawValue, fields []string) []byte {
	start, dst := bsoncore.AppendDocumentStart(dst)
	q, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = bsoncore.AppendValueElement(dst, "_id", bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	if plainNames(fields) {
		u, d := bsoncore.AppendDocumentElementStart(dst, "u")
		set, d := bsoncore.AppendDocumentElementStart(d, "$set")
		for _, f := range fields {
			d = bsoncore.AppendTimestampElement(d, f, 0, 0)
		}
		d, _ = bsoncore.AppendDocumentEnd(d, set)
		dst, _ = bsoncore.AppendDocumentEnd(d, u)
	} else {
		u, d := bsoncore.AppendArrayElementStart(dst, "u")
		d = bsoncore.AppendDocumentElement(d, "0", setFields(fields))
		dst, _ = bsoncore.AppendArrayEnd(d, u)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// plainNames reports whether $set takes names for what they are: it takes dots for paths.
func plainNames(names []string) bool {
	for _, name := range names {
		if name == "" || name[0] == '$' || strings.Contains(name, ".") {
			return false
		}
	}
	return true
}

// setFields is a stage that sets fields of any name to Timestamp(0, 0).
func setFields(fields []string) []byte {
	zero := bsoncore.BuildDocument(nil, bsoncore.AppendTimestampElement(nil, "$literal", 0, 0))
	input := bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "$$ROOT")}
	for _, f := range fields {
		args := bsoncore.AppendDocumentElement(nil, "field", bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "$literal", f)))
		args = bsoncore.AppendValueElement(args, "input", input)
		args = bsoncore.AppendDocumentElement(args, "value", zero)
		set := bsoncore.AppendDocumentElement(nil, "$setField", bsoncore.BuildDocument(nil, args))
		input = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: bsoncore.BuildDocument(nil, set)}
	}
	return bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "$replaceWith", input))
}

// idFirst is a document with its _id first, where a server puts it whenever it stores a document;
// only applyOps stores one with the _id elsewhere, and no command copies that. A document that has
// it there already is returned as it is.
func idFirst(doc bson.Raw) bson.Raw {
	var id bsoncore.Element
	var others []byte
	for rem := []byte(doc[4:]); len(rem) > 1; {
		e, rest, ok := bsoncore.ReadElement(rem)
		if !ok {
			return doc
		}
		rem = rest
		if string(e.KeyBytes()) != "_id" || id != nil {
			others = append(others, e...)
			continue
		}
		if id = e; len(others) == 0 {
			return doc
		}
	}
	if id == nil {
		return doc
	}
	return bsoncore.BuildDocument(nil, id, others)
}
