package shardkey

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/shardkey/order"
)

func upsertFilter(t *testing.T, js string) bson.Raw {
	t.Helper()
	var raw bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(js), false, &raw); err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestUpsertValueIsWhatAServerCopies from the filter into the new document; value "" is one that cannot be told.
func TestUpsertValueIsWhatAServerCopies(t *testing.T) {
	key, err := ParsePattern(upsertFilter(t, `{"k": "hashed"}`))
	if err != nil {
		t.Fatal(err)
	}
	for filter, value := range map[string]string{
		`{"k": 4}`:                                  `4`,
		`{"k": {"$eq": 4}}`:                         `4`,
		`{"k": {"$in": [4]}}`:                       `4`,
		`{"k": {"$in": [null]}}`:                    `null`,
		`{"k": {"$all": [5]}}`:                      `5`,
		`{"$or": [{"k": 5}]}`:                       `5`,
		`{"$or": [{"k": {"$in": [5]}, "a": 1}]}`:    `5`,
		`{"$and": [{"$or": [{"k": 5}]}, {"a": 1}]}`: `5`,
		`{"k": {"$eq": 4, "$in": [4, 5]}}`:          `4`,
		`{"k": 2, "$or": [{"e": 1}, {"e": null}]}`:  `2`,
		`{"a": 1}`:               `null`,
		`{"k": {"$in": [4, 5]}}`: ``,
		`{"k": {"$in": []}}`:     ``,
		`{"k": {"$in": [[4]]}}`:  ``,
		`{"k": {"$in": [{"$regularExpression": {"pattern": "a", "options": ""}}]}}`: ``,
		`{"k": {"$all": [5, 6]}}`:                     ``,
		`{"k": {"$all": [{"$elemMatch": {"a": 1}}]}}`: ``,
		`{"k": {"$gt": 5}}`:                           ``,
		`{"$or": [{"k": 5}, {"k": 6}]}`:               ``,
		`{"$nor": [{"k": 5}]}`:                        ``,
		`{"k": 4, "$or": [{"k": 4}]}`:                 ``,
	} {
		v, known := key.UpsertValue(upsertFilter(t, filter))
		if known != (value != "") {
			t.Errorf("%s: known %v", filter, known)
			continue
		}
		if !known {
			continue
		}
		want := upsertFilter(t, `{"v": `+value+`}`).Lookup("v")
		if order.Compare(v, bsoncore.Value{Type: bsoncore.Type(want.Type), Data: want.Value}) != 0 {
			t.Errorf("%s: %v, want %s", filter, v, value)
		}
	}
}

// TestUpsertMakesID where the filter says nothing of _id, whatever else it says.
func TestUpsertMakesID(t *testing.T) {
	key, err := ParsePattern(upsertFilter(t, `{"_id": "hashed"}`))
	if err != nil {
		t.Fatal(err)
	}
	for filter, want := range map[string]bool{
		`{"a": 1}`: true,
		`{"k": 2, "$or": [{"e": {"$gt": 1}}, {"e": null}]}`: true,
		`{"$and": [{"a": 1}, {"$nor": [{"b": 1}]}]}`:        true,
		`{"_id": 1}`:            false,
		`{"_id.a": 1}`:          false,
		`{"$or": [{"_id": 1}]}`: false,
		`{"a": 1, "$or": [{"_id": 1}, {"a": 2}]}`: false,
	} {
		if got := key.UpsertMakesID(upsertFilter(t, filter)); got != want {
			t.Errorf("%s: %v, want %v", filter, got, want)
		}
	}
	for filter, want := range map[string]bool{`{"$expr": true}`: true, `{"$and": [{"$or": [{"$expr": 1}]}]}`: true, `{"a": {"$gt": 1}}`: false, `{"$or": [{"a": 1}]}`: false} {
		if got := HasExpr(upsertFilter(t, filter)); got != want {
			t.Errorf("HasExpr(%s): %v", filter, got)
		}
	}
}
