package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Error is an error as MongoDB reports it: it becomes the reply {ok:0, errmsg, code, codeName}.
type Error struct {
	Code    Code
	Message string
	// Labels become errorLabels.
	Labels []string
	// Extra is a document whose fields are appended to the reply; nil for none.
	Extra bson.Raw
	// named is a code that a server gave the name codeName: it may know more names than this program.
	named    Code
	codeName string
}

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s (%d): %s", e.CodeName(), int32(e.Code), e.Message)
}

// CodeName is the name of the code: that which the server gave it from whose reply the error was made, or else the usual one.
func (e *Error) CodeName() string {
	if e.codeName != "" && e.named == e.Code {
		return e.codeName
	}
	return e.Code.Name()
}

// WireError returns e; see AsError.
func (e *Error) WireError() *Error { return e }

// HasLabel reports whether the error carries a label.
func (e *Error) HasLabel(label string) bool {
	for _, l := range e.Labels {
		if l == label {
			return true
		}
	}
	return false
}

// WriteConcernCode returns the code of the writeConcernError that stands beside the error; ok is false where there is none.
// What the error's own code says is then only what one server knew: it was not confirmed as the client, or the program, had asked.
func (e *Error) WriteConcernCode() (code Code, ok bool) {
	if len(e.Extra) <= 5 {
		return 0, false
	}
	v, err := bsoncore.Document(e.Extra).LookupErr("writeConcernError")
	if err != nil {
		return 0, false
	}
	d, ok := v.DocumentOK()
	n, _ := d.Lookup("code").AsInt64OK()
	return Code(n), ok
}

// FatalError says that what was read cannot be trusted: the connection is closed without a reply.
type FatalError struct {
	Code    Code
	Message string
}

// Fatalf makes a FatalError.
func Fatalf(code Code, format string, args ...any) *FatalError {
	return &FatalError{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (e *FatalError) Error() string {
	return fmt.Sprintf("%s (%d): %s", e.Code.Name(), int32(e.Code), e.Message)
}

// wireErrorer is an error of another package that knows what it is to a client.
type wireErrorer interface{ WireError() *Error }

// Retriable reports whether a repeated attempt may succeed where one has ended with err; nil is no such error.
func Retriable(err error) bool { return err != nil && AsError(err).Code.Retriable() }

// AsError turns any error into the one a client is told: an *Error, or what an error says of itself by a method
// WireError() *Error, as it is; a deadline 50 MaxTimeMSExpired; a cancellation 279 ClientDisconnect; trouble of the network
// 6 HostUnreachable; anything else 1 InternalError. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var we wireErrorer
	if errors.As(err, &we) {
		return we.WireError()
	}
	var ne net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf(MaxTimeMSExpired, "operation exceeded time limit")
	case errors.Is(err, context.Canceled):
		return Errorf(ClientDisconnect, "operation was interrupted because the client disconnected")
	case errors.As(err, &ne), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return Errorf(HostUnreachable, "%v", err)
	}
	return Errorf(InternalError, "%v", err)
}

// AppendErrorReply appends the reply document for err to dst.
func AppendErrorReply(dst []byte, err error) []byte {
	e := AsError(err)
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendDoubleElement(dst, "ok", 0)
	dst = bsoncore.AppendStringElement(dst, "errmsg", e.Message)
	dst = bsoncore.AppendInt32Element(dst, "code", int32(e.Code))
	dst = bsoncore.AppendStringElement(dst, "codeName", e.CodeName())
	if len(e.Labels) > 0 {
		at, d := bsoncore.AppendArrayElementStart(dst, "errorLabels")
		for i, l := range e.Labels {
			d = bsoncore.AppendStringElement(d, fmt.Sprint(i), l)
		}
		dst, _ = bsoncore.AppendArrayEnd(d, at)
	}
	if len(e.Extra) > 5 {
		dst = append(dst, e.Extra[4:len(e.Extra)-1]...)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// ReplyOK reports whether a reply's ok field is true; it may be any number type. A reply without one is not ok.
func ReplyOK(body bson.Raw) bool {
	v, err := bsoncore.Document(body).LookupErr("ok")
	if err != nil {
		return false
	}
	if b, isBool := v.BooleanOK(); isBool {
		return b
	}
	f, isNum := v.AsFloat64OK()
	return isNum && f != 0
}

// ErrorFromReply returns the error that an ok:0 reply tells, nil when the reply is ok. Fields beyond the usual are kept in Extra;
// the bytes are copied.
func ErrorFromReply(body bson.Raw) *Error {
	if ReplyOK(body) {
		return nil
	}
	e := &Error{Code: InternalError, Message: "the backend's reply has neither ok nor an error"}
	extra := bsoncore.NewDocumentBuilder().Build()[:4]
	elems, _ := bsoncore.Document(body).Elements()
	for _, el := range elems {
		v := el.Value()
		switch el.Key() {
		case "ok", "$clusterTime", "operationTime", "topologyVersion", "$gleStats", "$configServerState", "lastCommittedOpTime":
		case "errmsg":
			if s, ok := v.StringValueOK(); ok {
				e.Message = s
			}
		case "code":
			if n, ok := v.AsInt64OK(); ok {
				e.Code = Code(n)
			}
		case "codeName":
			e.codeName, _ = v.StringValueOK()
		case "errorLabels":
			e.Labels = Labels(v)
		default:
			extra = append(extra, el...)
		}
	}
	e.named = e.Code
	if len(extra) > 4 {
		extra, _ = bsoncore.AppendDocumentEnd(extra, 0)
		e.Extra = bson.Raw(extra)
	}
	return e
}

// WriteConcernError returns a reply's writeConcernError as an error, nil when the reply has none.
// It comes with ok:1: the command was executed, and its write concern was not met.
func WriteConcernError(body bson.Raw) *Error {
	v, err := bsoncore.Document(body).LookupErr("writeConcernError")
	if err != nil {
		return nil
	}
	e := &Error{Code: WriteConcernFailed, Message: "the write concern was not met"}
	doc, ok := v.DocumentOK()
	if !ok {
		return e
	}
	if n, ok := doc.Lookup("code").AsInt64OK(); ok {
		e.Code = Code(n)
	}
	if s, ok := doc.Lookup("errmsg").StringValueOK(); ok {
		e.Message = s
	}
	e.codeName, _ = doc.Lookup("codeName").StringValueOK()
	e.named = e.Code
	return e
}

// Labels reads the value of a reply's errorLabels.
func Labels(v bsoncore.Value) []string {
	arr, ok := v.ArrayOK()
	if !ok {
		return nil
	}
	var labels []string
	values, _ := arr.Values()
	for _, l := range values {
		if s, ok := l.StringValueOK(); ok {
			labels = append(labels, s)
		}
	}
	return labels
}
