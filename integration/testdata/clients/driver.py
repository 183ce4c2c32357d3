"""CRUD with pymongo's default options: python driver.py URI"""

import sys

from pymongo import ASCENDING, DESCENDING, DeleteOne, InsertOne, MongoClient, ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError, WriteError


def fails(kind, f):
    try:
        f()
    except kind as e:
        return e
    raise AssertionError("it did not fail")


with MongoClient(sys.argv[1]) as client:
    db = client["python_driver"]
    client.admin.command("shardCollection", "python_driver.c", key={"k": "hashed"})
    c = db["c"]

    assert len(c.insert_many([{"_id": i, "k": f"k{i % 50}", "n": i} for i in range(500)]).inserted_ids) == 500
    assert c.count_documents({}) == 500
    assert c.insert_one({"k": "fresh"}).acknowledged
    assert c.update_one({"k": "k1", "n": 1}, {"$inc": {"n": 1000}}).modified_count == 1
    assert c.find_one({"k": "k1", "_id": 1})["n"] == 1001
    assert c.update_many({"n": {"$lt": 100}}, {"$set": {"low": True}}).modified_count == 99
    assert c.replace_one({"_id": 7, "k": "k7"}, {"k": "k7", "replaced": True}).modified_count == 1
    assert c.update_one({"_id": "new", "k": "z"}, {"$set": {"v": 1}}, upsert=True).upserted_id == "new"
    assert c.find_one_and_update({"k": "z"}, {"$set": {"v": 2}}, return_document=ReturnDocument.AFTER)["v"] == 2
    assert c.find_one_and_delete({"k": "z"})["v"] == 2
    assert c.delete_many({"k": "fresh"}).deleted_count == 1

    assert sorted(d["_id"] for d in c.find({}, batch_size=37)) == list(range(500))
    page = c.find({}, {"_id": 1}, batch_size=41).sort("_id", DESCENDING).skip(10).limit(100)
    assert [d["_id"] for d in page] == list(range(489, 389, -1))

    e = fails(
        BulkWriteError,
        lambda: c.bulk_write(
            [
                InsertOne({"_id": 600, "k": "b"}),
                InsertOne({"_id": 3, "k": "k3"}),
                UpdateOne({"_id": 4, "k": "k4"}, {"$set": {"bulk": True}}),
                UpdateOne({"_id": 601, "k": "u"}, {"$set": {"n": 1}}, upsert=True),
                DeleteOne({"_id": 5, "k": "k5"}),
                InsertOne({"_id": 4, "k": "k4"}),
            ],
            ordered=False,
        ),
    ).details
    assert [(w["index"], w["code"]) for w in e["writeErrors"]] == [(1, 11000), (5, 11000)], e
    assert (e["nInserted"], e["nMatched"], e["nUpserted"], e["nRemoved"]) == (1, 1, 1, 1), e
    assert e["upserted"] == [{"index": 3, "_id": 601}], e
    e = fails(BulkWriteError, lambda: c.insert_many([{"_id": 700, "k": "o"}, {"_id": 8, "k": "k8"}, {"_id": 701, "k": "o"}])).details
    assert e["writeErrors"][0]["index"] == 1 and e["nInserted"] == 1, e
    assert c.count_documents({"_id": {"$in": [700, 701]}}) == 1

    groups = c.aggregate([{"$group": {"_id": "$k", "n": {"$sum": 1}}}, {"$sort": {"_id": ASCENDING}}, {"$limit": 3}])
    assert [g["_id"] for g in groups] == ["b", "k0", "k1"]
    assert len(c.distinct("k", {"_id": {"$lt": 10}})) == 9
    assert fails(WriteError, lambda: c.update_one({"_id": 1, "k": "k1"}, {"$set": {"k": "other"}})).code == 66

    client.drop_database("python_driver")
print("ok")
