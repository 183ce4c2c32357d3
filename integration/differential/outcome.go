package differential

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Outcome is what one step showed on one side, as text made for comparing: everything that must be the same and nothing else.
type Outcome []string

// physical is what the name of a physical collection looks like; no client may ever see one.
var physical = regexp.MustCompile(`@[0-9a-f]+\.[0-9]+\.[0-9]+`)

// volatile are a reply's fields that two servers need not have alike.
var volatile = []string{"$clusterTime", "operationTime", "opTime", "electionId", "errmsg", "codeName", "retriedStmtIds", "retriedStmtId",
	"errorLabels", "shards", "topologyVersion", "cursor", "lsid", "atClusterTime", "errInfo"}

// outcome of a step: the first reply, what its cursor held, and errors on the way.
type collector struct {
	step Step
	out  Outcome
	docs []string
}

// reply adds a reply, whose cursor's documents are kept apart.
func (c *collector) reply(reply bson.Raw) error {
	if m := physical.FindString(reply.String()); m != "" {
		c.out = append(c.out, "SHOWS A PHYSICAL NAME: "+m)
	}
	elements, err := reply.Elements()
	if err != nil {
		return err
	}
	var fields []string
	for _, e := range elements {
		if name := e.Key(); !slices.Contains(volatile, name) {
			fields = append(fields, name+"="+c.field(name, e.Value()))
		}
	}
	slices.Sort(fields)
	c.out = append(c.out, strings.Join(fields, " "))
	return c.batch(reply)
}

func (c *collector) batch(reply bson.Raw) error {
	cursor, ok := reply.Lookup("cursor").DocumentOK()
	if !ok {
		return nil
	}
	batch, ok := cursor.Lookup("firstBatch").ArrayOK()
	if !ok {
		if batch, ok = cursor.Lookup("nextBatch").ArrayOK(); !ok {
			return fmt.Errorf("a cursor without a batch: %v", cursor)
		}
	}
	values, err := batch.Values()
	if err != nil {
		return err
	}
	for _, v := range values {
		c.docs = append(c.docs, c.document(v))
	}
	return nil
}

// finish is the whole outcome.
func (c *collector) finish() Outcome {
	if !c.step.Ordered {
		slices.Sort(c.docs)
	}
	return append(c.out, c.docs...)
}

// field shows a top-level field of a reply.
func (c *collector) field(name string, v bson.RawValue) string {
	switch name {
	case "writeErrors":
		return writeErrors(v)
	case "writeConcernError":
		return "present"
	case "ok", "n", "nModified", "code":
		n, _ := v.AsInt64OK()
		return fmt.Sprint(n)
	}
	if slices.Contains(c.step.Sets, name) {
		return c.set(v)
	}
	return c.value(v)
}

// writeErrors shows what a client acts on: index, code, and for duplicates of what.
func writeErrors(v bson.RawValue) string {
	array, _ := v.ArrayOK()
	values, err := array.Values()
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, v := range values {
		d, _ := v.DocumentOK()
		index, _ := d.Lookup("index").AsInt64OK()
		code, _ := d.Lookup("code").AsInt64OK()
		_, text := d.Lookup("errmsg").StringValueOK()
		all = append(all, fmt.Sprintf("{%d: %d %v %s %s}", index, code, text, loose(d.Lookup("keyPattern")), loose(d.Lookup("keyValue"))))
	}
	return strings.Join(all, ",")
}

// document shows a document of a result; of a loose step's, fields named as sets have no order.
func (c *collector) document(v bson.RawValue) string {
	d, ok := v.DocumentOK()
	if !ok || len(c.step.Sets) == 0 {
		return c.value(v)
	}
	elements, err := d.Elements()
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range elements {
		if slices.Contains(c.step.Sets, e.Key()) {
			fmt.Fprintf(&b, "%s=%s ", e.Key(), c.set(e.Value()))
			continue
		}
		fmt.Fprintf(&b, "%s=%s ", e.Key(), c.value(e.Value()))
	}
	return b.String()
}

func (c *collector) set(v bson.RawValue) string {
	array, ok := v.ArrayOK()
	if !ok {
		return c.value(v)
	}
	values, err := array.Values()
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, v := range values {
		all = append(all, c.value(v))
	}
	slices.Sort(all)
	return "set[" + strings.Join(all, ",") + "]"
}

func (c *collector) value(v bson.RawValue) string {
	if c.step.Loose {
		return loose(v)
	}
	return exact(v)
}

// exact shows type and bytes.
func exact(v bson.RawValue) string {
	switch v.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeString, bson.TypeBoolean, bson.TypeNull, bson.TypeObjectID, bson.TypeDateTime:
		return v.Type.String() + ":" + v.String() + bits(v)
	}
	return fmt.Sprintf("%s:%x", v.Type, v.Value)
}

// bits tells -0 from 0, one NaN from another, and values within documents that print alike.
func bits(v bson.RawValue) string {
	switch v.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeDouble:
		return fmt.Sprintf("#%x", v.Value)
	}
	return ""
}

// loose shows equal numbers alike, whatever their type, at any depth.
func loose(v bson.RawValue) string {
	switch v.Type {
	case 0:
		return "absent"
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		elements, err := bson.Raw(v.Value).Elements()
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, e := range elements {
			all = append(all, e.Key()+":"+loose(e.Value()))
		}
		return "{" + strings.Join(all, ",") + "}"
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := v.AsInt64OK()
		return fmt.Sprintf("number:%d", n)
	case bson.TypeDouble:
		f := v.Double()
		switch {
		case math.IsNaN(f):
			return "number:NaN"
		case math.IsInf(f, 1):
			return "number:Infinity"
		case math.IsInf(f, -1):
			return "number:-Infinity"
		}
		if f == math.Trunc(f) && math.Abs(f) < 1<<62 {
			return fmt.Sprintf("number:%d", int64(f))
		}
		return fmt.Sprintf("number:%v", f)
	case bson.TypeDecimal128:
		return "number:" + plainDecimal(v.Decimal128())
	case bson.TypeNull, bson.TypeUndefined:
		return "null"
	}
	return exact(v)
}

// plainDecimal writes a decimal as loose writes the number it equals.
func plainDecimal(d bson.Decimal128) string {
	n, exp, err := d.BigInt()
	if err != nil {
		return d.String()
	}
	text := n.String()
	for exp < 0 && strings.HasSuffix(text, "0") && text != "0" {
		text, exp = text[:len(text)-1], exp+1
	}
	if text == "0" {
		return "0"
	}
	if exp > 0 && exp < 20 {
		return text + strings.Repeat("0", exp)
	}
	if exp == 0 {
		return text
	}
	negative := strings.HasPrefix(text, "-")
	text = strings.TrimPrefix(text, "-")
	if exp < 0 && -exp < 20 {
		text = strings.Repeat("0", max(0, 1-exp-len(text))) + text
		text = text[:len(text)+exp] + "." + text[len(text)+exp:]
		if negative {
			text = "-" + text
		}
		return text
	}
	return d.String()
}
