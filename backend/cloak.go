package backend

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"github.com/shardway/shardway/wire"
)

// isStateChange reports whether a code says that a server is not (or no longer) primary, or shuts down.
func isStateChange(code int64) bool {
	c := wire.Code(code)
	return c.NotPrimary() || c.Shutdown()
}

// stateChanged reports whether a reply holds a state-change error: at its root, in a write error or as
// its write concern error. It reads only the names of a good reply's fields.
func stateChanged(body []byte) bool {
	rest, ok := fields(body)
	if !ok {
		return false
	}
	for len(rest) > 1 {
		var e bsoncore.Element
		if e, rest, ok = bsoncore.ReadElement(rest); !ok {
			return false
		}
		switch string(e.KeyBytes()) {
		case "code":
			if code, ok := e.Value().AsInt64OK(); ok && isStateChange(code) {
				return true
			}
		case "writeConcernError":
			if d, ok := e.Value().DocumentOK(); ok && isStateChange(codeOf(d)) {
				return true
			}
		case "writeErrors":
			if a, ok := e.Value().ArrayOK(); ok && anyStateChange(a) {
				return true
			}
		}
	}
	return false
}

// fields returns what follows a document's length.
func fields(doc []byte) ([]byte, bool) {
	_, rest, ok := bsoncore.ReadLength(doc)
	return rest, ok
}

func codeOf(d bsoncore.Document) int64 {
	v, err := d.LookupErr("code")
	if err != nil {
		return 0
	}
	code, _ := v.AsInt64OK()
	return code
}

func anyStateChange(a bsoncore.Array) bool {
	values, err := a.Values()
	if err != nil {
		return false
	}
	for _, v := range values {
		if d, ok := v.DocumentOK(); ok && isStateChange(codeOf(d)) {
			return true
		}
	}
	return false
}

// stateChange tells the topology what a reply said, so that the new primary is looked for at once.
func (b *Backend) stateChange(c *conn, body []byte) {
	b.stats.stateChanges.Add(1)
	err := driver.ExtractErrorFromServerResponse(bsoncore.Document(body))
	if we, ok := err.(driver.WriteCommandError); ok && we.WriteConcernError == nil {
		// Single write errors with such a code: the driver looks at the root and the write concern only.
		for _, w := range we.WriteErrors {
			if isStateChange(w.Code) {
				err = driver.Error{Code: int32(w.Code), Message: w.Message}
				break
			}
		}
	}
	if err != nil {
		b.report(c, err)
	}
}

// cloaked replaces the phrases by which old drivers know a state change when there is no code.
var cloaked = strings.NewReplacer(
	"not master", "(NOT_PRIMARY)",
	"node is recovering", "(NODE_IS_RECOVERING)",
)

// Cloak rewrites the state-change errors of a reply as mongos does: a driver that saw them would take
// this proxy for the server that stepped down. The code becomes 6 HostUnreachable, the phrases drivers
// look for go, error labels stay (so RetryableWriteError does). Other replies are returned as they
// are; a rewritten one is a new document. Replies of Wait have been through it.
func Cloak(body bson.Raw) bson.Raw {
	if !stateChanged(body) {
		return body
	}
	return bson.Raw(cloakError(bsoncore.Document(body), true))
}

// cloakError copies doc with its own code rewritten if it is a state change's; at the root the nested
// errors as well.
func cloakError(doc bsoncore.Document, root bool) []byte {
	elems, err := doc.Elements()
	if err != nil {
		return doc
	}
	changed := isStateChange(codeOf(doc))
	start, out := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)+64))
	for _, e := range elems {
		v := e.Value()
		switch key := e.Key(); {
		case changed && key == "code":
			out = bsoncore.AppendInt32Element(out, key, int32(wire.HostUnreachable))
		case changed && key == "codeName":
			out = bsoncore.AppendStringElement(out, key, wire.HostUnreachable.Name())
		case changed && key == "errmsg" && v.Type == bsoncore.TypeString:
			out = bsoncore.AppendStringElement(out, key, cloaked.Replace(v.StringValue()))
		case root && key == "topologyVersion":
			// The server's, not ours.
		case root && key == "writeConcernError" && v.Type == bsoncore.TypeEmbeddedDocument:
			out = bsoncore.AppendDocumentElement(out, key, cloakError(v.Document(), false))
		case root && key == "writeErrors" && v.Type == bsoncore.TypeArray:
			out = cloakAll(out, key, v.Array())
		default:
			out = append(out, e...)
		}
	}
	out, _ = bsoncore.AppendDocumentEnd(out, start)
	return out
}

// cloakAll appends an array of errors under key, each cloaked.
func cloakAll(out []byte, key string, a bsoncore.Array) []byte {
	values, err := a.Values()
	if err != nil {
		return bsoncore.AppendArrayElement(out, key, a)
	}
	start, out := bsoncore.AppendArrayElementStart(out, key)
	for i, v := range values {
		if d, ok := v.DocumentOK(); ok {
			v = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: cloakError(d, false)}
		}
		out = bsoncore.AppendValueElement(out, itoa(i), v)
	}
	out, _ = bsoncore.AppendArrayEnd(out, start)
	return out
}
