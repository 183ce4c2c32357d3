// CRUD with the Node driver's default options: node driver.mjs URI
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

// The driver is installed beside the working directory, not beside this file.
const { MongoClient, MongoBulkWriteError } = createRequire(path.join(process.cwd(), "x.js"))("mongodb");

const client = new MongoClient(process.argv[2]);
client.on("error", (e) => { throw e; });
await client.connect();
const db = client.db("node_driver");
await client.db("admin").command({ shardCollection: "node_driver.c", key: { k: "hashed" } });
const c = db.collection("c");

const docs = [...Array(500).keys()].map((i) => ({ _id: i, k: `k${i % 50}`, n: i }));
assert.equal((await c.insertMany(docs)).insertedCount, 500);
assert.equal(await c.countDocuments({}), 500);
assert.equal(await c.estimatedDocumentCount(), 500);
assert.equal((await c.insertOne({ k: "fresh" })).acknowledged, true);
assert.equal((await c.updateOne({ k: "k1", n: 1 }, { $inc: { n: 1000 } })).modifiedCount, 1);
assert.equal((await c.findOne({ k: "k1", _id: 1 })).n, 1001);
assert.equal((await c.updateMany({ n: { $lt: 100 } }, { $set: { low: true } })).modifiedCount, 99);
assert.equal((await c.replaceOne({ _id: 7, k: "k7" }, { k: "k7", replaced: true })).modifiedCount, 1);
assert.equal((await c.updateOne({ _id: "new", k: "z" }, { $set: { v: 1 } }, { upsert: true })).upsertedId, "new");
assert.equal((await c.findOneAndUpdate({ k: "z" }, { $set: { v: 2 } }, { returnDocument: "after" })).v, 2);
assert.equal((await c.findOneAndDelete({ k: "z" })).v, 2);
assert.equal((await c.deleteMany({ k: "fresh" })).deletedCount, 1);

let seen = 0;
for await (const d of c.find({ _id: { $type: "number" } }, { batchSize: 37 })) seen += d._id >= 0 ? 1 : 0;
assert.equal(seen, 500);
const sorted = await c.find({}, { projection: { _id: 1 }, batchSize: 41 }).sort({ _id: -1 }).skip(10).limit(100).toArray();
assert.deepEqual(sorted.map((d) => d._id), [...Array(100).keys()].map((i) => 489 - i));

await assert.rejects(
  c.bulkWrite(
    [
      { insertOne: { document: { _id: 600, k: "b" } } },
      { insertOne: { document: { _id: 3, k: "k3" } } },
      { updateOne: { filter: { _id: 4, k: "k4" }, update: { $set: { bulk: true } } } },
      { updateOne: { filter: { _id: 601, k: "u" }, update: { $set: { n: 1 } }, upsert: true } },
      { deleteOne: { filter: { _id: 5, k: "k5" } } },
      { insertOne: { document: { _id: 4, k: "k4" } } },
    ],
    { ordered: false },
  ),
  (e) => {
    assert.ok(e instanceof MongoBulkWriteError);
    assert.deepEqual(e.writeErrors.map((w) => [w.index, w.code]), [[1, 11000], [5, 11000]]);
    assert.equal(e.result.insertedCount, 1);
    assert.equal(e.result.matchedCount, 1);
    assert.equal(e.result.upsertedCount, 1);
    assert.deepEqual(e.result.upsertedIds, { 3: 601 });
    assert.equal(e.result.deletedCount, 1);
    return true;
  },
);
await assert.rejects(
  c.insertMany([{ _id: 700, k: "o" }, { _id: 8, k: "k8" }, { _id: 701, k: "o" }]),
  (e) => e.writeErrors[0].index === 1 && e.insertedCount === 1,
);
assert.equal(await c.countDocuments({ _id: { $in: [700, 701] } }), 1);

const groups = await c.aggregate([{ $group: { _id: "$k", n: { $sum: 1 } } }, { $sort: { _id: 1 } }, { $limit: 3 }]).toArray();
assert.deepEqual(groups.map((g) => g._id), ["b", "k0", "k1"]);
assert.equal((await c.distinct("k", { _id: { $lt: 10 } })).length, 9);
await assert.rejects(c.updateOne({ _id: 1, k: "k1" }, { $set: { k: "other" } }), (e) => e.code === 66);

await db.dropDatabase();
await client.close();
console.log("ok");
