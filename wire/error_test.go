package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestCodeNames(t *testing.T) {
	for code, want := range map[Code]string{1: "InternalError", 6: "HostUnreachable", 66: "ImmutableField", 11000: "DuplicateKey",
		13388: "StaleConfig", 40415: "Location40415", 0: "Location0", 186: "ClientMetadataCannotBeMutated"} {
		if got := code.Name(); got != want {
			t.Errorf("Code(%d).Name() = %q, want %q", code, got, want)
		}
	}
	seen := map[string]Code{}
	for c, n := range codeNames {
		if other, twice := seen[n]; twice {
			t.Errorf("codes %d and %d are both %s", c, other, n)
		}
		seen[n] = c
	}
}

// TestCodeNamesAreServers compares all names with MongoDB's own list, of which testdata has the part that this program uses (names of version 7.0).
func TestCodeNamesAreServers(t *testing.T) {
	list, err := os.ReadFile("testdata/error_codes.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[Code]string{}
	for line := range strings.Lines(string(list)) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		known[Code(n)] = name
		if got := Code(n).Name(); got != name {
			t.Errorf("%d is %s, want %s", n, got, name)
		}
	}
	for c, n := range codeNames {
		if known[c] == "" {
			t.Errorf("the list does not have %d, which is called %s here", c, n)
		}
	}
}

// TestWriteConcernBesideAnError: an error may come with the news that not even it was confirmed.
func TestWriteConcernBesideAnError(t *testing.T) {
	for _, c := range []struct {
		reply bson.D
		code  Code
		ok    bool
	}{
		{bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: int32(251)}}, 0, false},
		{bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: int32(251)}, {Key: "keyValue", Value: bson.D{}}}, 0, false},
		{bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: int32(251)}, {Key: "writeConcernError", Value: bson.D{{Key: "code", Value: int32(100)}}}}, 100, true},
		{bson.D{{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64.0}}}, {Key: "ok", Value: 0.0}, {Key: "code", Value: int32(251)}}, 64, true},
		{bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: int32(251)}, {Key: "writeConcernError", Value: "no document"}}, 0, false},
	} {
		if code, ok := ErrorFromReply(doc(t, c.reply)).WriteConcernCode(); code != c.code || ok != c.ok {
			t.Errorf("%v: %d %v, want %d %v", c.reply, code, ok, c.code, c.ok)
		}
	}
}

func TestErrorReplies(t *testing.T) {
	extra := doc(t, bson.D{{Key: "keyValue", Value: bson.D{{Key: "a", Value: int32(1)}}}})
	in := &Error{Code: 11000, Message: "twice", Labels: []string{"A", "B"}, Extra: extra}
	body := bson.Raw(AppendErrorReply([]byte("x"), fmt.Errorf("wrapped: %w", in))[1:])
	if err := body.Validate(); err != nil {
		t.Fatal(err)
	}
	want := doc(t, bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: "twice"}, {Key: "code", Value: int32(11000)}, {Key: "codeName", Value: "DuplicateKey"},
		{Key: "errorLabels", Value: bson.A{"A", "B"}}, {Key: "keyValue", Value: bson.D{{Key: "a", Value: int32(1)}}}})
	if !bytes.Equal(body, want) {
		t.Errorf("got %v, want %v", body, bson.Raw(want))
	}
	out := ErrorFromReply(body)
	if out == nil || out.Code != in.Code || out.Message != in.Message || !out.HasLabel("B") || out.HasLabel("C") || !bytes.Equal(out.Extra, extra) {
		t.Errorf("read back as %+v", out)
	}
}

// A server's name for a code is the one that is told, as long as the code is.
func TestErrorKeepsTheServersName(t *testing.T) {
	e := ErrorFromReply(doc(t, bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: "x"}, {Key: "codeName", Value: "ConversionFailure"}, {Key: "code", Value: int32(241)}}))
	name := func(err error) string {
		return bson.Raw(AppendErrorReply(nil, err)).Lookup("codeName").StringValue()
	}
	if got := name(fmt.Errorf("wrapped: %w", e)); got != "ConversionFailure" || len(e.Extra) != 0 {
		t.Errorf("code 241 is called %s, with %v", got, e.Extra)
	}
	e.Code = BadValue
	if got := name(e); got != "BadValue" {
		t.Errorf("another code kept the name %s", got)
	}
	if got := name(Errorf(241, "x")); got != "Location241" {
		t.Errorf("a code without a name is called %s", got)
	}
}

func TestErrorFromReplyReadsOK(t *testing.T) {
	for _, ok := range []any{1.0, int32(1), int64(1), true} {
		if e := ErrorFromReply(doc(t, bson.D{{Key: "ok", Value: ok}})); e != nil {
			t.Errorf("ok: %T(%v): %v", ok, ok, e)
		}
	}
	for _, ok := range []any{0.0, int32(0), int64(0), false, "1", nil} {
		if e := ErrorFromReply(doc(t, bson.D{{Key: "ok", Value: ok}, {Key: "code", Value: 59.0}})); e == nil || e.Code != CommandNotFound {
			t.Errorf("ok: %T(%v): %v", ok, ok, e)
		}
	}
	if e := ErrorFromReply(doc(t, bson.D{})); e == nil {
		t.Error("a reply without ok passed as one that is")
	}
}

func TestAsError(t *testing.T) {
	known := Errorf(BadValue, "x")
	for _, tt := range []struct {
		err  error
		want Code
	}{
		{known, BadValue},
		{fmt.Errorf("while: %w", known), BadValue},
		{context.DeadlineExceeded, MaxTimeMSExpired},
		{fmt.Errorf("while: %w", context.Canceled), ClientDisconnect},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, HostUnreachable},
		{io.ErrUnexpectedEOF, HostUnreachable},
		{errors.New("?"), InternalError},
	} {
		if got := AsError(tt.err); got.Code != tt.want {
			t.Errorf("AsError(%v) = %v, want %d", tt.err, got, tt.want)
		}
	}
	if AsError(nil) != nil {
		t.Error("AsError(nil) is an error")
	}
}
