// A tour with mongosh: every line of it is something that a user types; what must hold is asserted.
const assert = require("node:assert/strict");
const same = (a, b) => assert.equal(JSON.stringify(a), JSON.stringify(b)); // the shell's arrays are of another realm
const tour = db.getSiblingDB("tour");
tour.dropDatabase();

assert.equal(sh.shardCollection("tour.people", { tenant: "hashed" }).collectionsharded, "tour.people");
for (let i = 0; i < 10; i++) tour.people.insertMany([...Array(100).keys()].map((j) => ({ _id: i * 100 + j, tenant: `t${j}`, n: j })));
assert.equal(tour.people.countDocuments(), 1000);
assert.equal(tour.people.insertOne({ tenant: "x", n: -1 }).acknowledged, true);
assert.equal(tour.people.find({ tenant: "t7" }).toArray().length, 10);
assert.equal(tour.people.find().toArray().length, 1001);
same(tour.people.find({}, { n: 1, _id: 0 }).sort({ n: 1, _id: 1 }).limit(2).toArray().map((d) => d.n), [-1, 0]);
same(tour.people.aggregate([{ $group: { _id: null, sum: { $sum: "$n" } } }]).toArray()[0].sum, 49499);
assert.equal(tour.people.createIndex({ n: 1 }), "n_1");
assert.ok(tour.people.getIndexes().some((i) => i.name === "n_1"));
same(tour.getCollectionNames(), ["people"]);

const partitions = () => {
  const uuid = db.getSiblingDB("config").collections.findOne({ _id: "tour.people" }).uuid;
  return db.getSiblingDB("config").chunks.find({ uuid }).sort({ min: 1 }).toArray();
};
const before = partitions();
assert.ok(before.length >= 1);
assert.equal(sh.splitFind("tour.people", { tenant: "t7" }).ok, 1);
const split = partitions();
assert.equal(split.length, before.length + 1);
assert.equal(tour.people.countDocuments(), 1001);

const moved = split[0];
const to = db.getSiblingDB("config").shards.find().toArray().map((s) => s._id).find((id) => id !== moved.shard);
assert.equal(db.adminCommand({ moveChunk: "tour.people", bounds: [moved.min, moved.max], to }).ok, 1);
assert.equal(partitions()[0].shard, to);
assert.equal(tour.people.find().toArray().length, 1001);

const stats = tour.people.stats();
assert.equal(stats.sharded, true);
assert.equal(stats.count, 1001);
assert.ok(Object.keys(stats.shards).length >= 1);
const held = Object.values(stats.shards).reduce((n, s) => n + s.count, 0);
assert.equal(held, 1001); // a backend with several partitions is one entry, with all of them in it
const distribution = tour.people.getShardDistribution();
print(distribution);
const status = sh.status();
print(status);
const shares = (status.value ?? status).shardedDataDistribution.find((d) => d.ns === "tour.people").shards;
assert.equal(shares.reduce((n, s) => n + Number(s.numOwnedDocuments), 0), 1001);
const text = JSON.stringify(status.value ?? status);
assert.ok(text.includes("tour.people"), text);
assert.ok(text.includes(to), text);
print(sh.getBalancerState());

const fails = (code, f) => { // not assert.throws: the shell's calls are awaited in its own functions only
  let e = null;
  try { f(); } catch (thrown) { e = thrown; }
  assert.equal(e?.code, code, e?.message);
  assert.ok(code === 73 || !/@[0-9a-f]+\.\d+\.\d+/.test(e.message), e.message); // 73 repeats the name that was asked for
  assert.ok(!e.message.includes("retryable writes"), e.message);
};
same(tour.people.aggregate([{ $sortByCount: "$tenant" }, { $sort: { count: -1, _id: 1 } }, { $limit: 1 }]).toArray(), [{ _id: "t0", count: 10 }]);
assert.equal(tour.people.updateOne({ _id: 7 }, { $set: { seen: true } }).modifiedCount, 1);
assert.equal(tour.people.updateMany({ n: 7 }, { $inc: { m: 1 } }).modifiedCount, 10);
fails(66, () => tour.people.updateOne({ _id: 7, tenant: "t7" }, { $set: { tenant: "else" } }));
fails(11000, () => tour.people.bulkWrite([{ insertOne: { document: { _id: 7, tenant: "t7" } } }, { insertOne: { document: { _id: 2000, tenant: "x" } } }], { ordered: false }));
assert.equal(tour.people.countDocuments({ _id: 2000 }), 1);
fails(67, () => tour.people.createIndex({ n: 1, m: 1 }, { unique: true }));
assert.equal(tour.people.createIndex({ tenant: 1, _id: 1 }, { unique: true }), "tenant_1__id_1");
fails(115, () => sh.reshardCollection("tour.people", { n: "hashed" }));
fails(115, () => db.getSiblingDB("config").settings.insertOne({ _id: "mine" }));
fails(73, () => tour.getCollection("people@1.0.0").insertOne({}));
assert.ok(db.getSiblingDB("config").getCollectionNames().includes("shards"));
for (const name of db.getMongo().getDBNames()) assert.ok(!name.startsWith("shardway"), name);
const seen = EJSON.stringify([tour.people.find({ n: 1 }).explain(), tour.people.find({ tenant: "t1" }).explain("executionStats"), stats, tour.people.validate(), tour.getCollectionInfos(), tour.people.getIndexes()]);
assert.ok(!/people@/.test(seen), seen);
assert.ok(tour.currentOp().inprog.length >= 1);
const session = db.getMongo().startSession();
assert.equal(session.getDatabase("tour").people.countDocuments({ tenant: "t7" }), 10);
session.endSession();
assert.equal(tour.people.renameCollection("folk").ok, 1);
assert.equal(tour.folk.countDocuments(), 1002);
assert.equal(tour.people.countDocuments(), 0);
assert.equal(tour.folk.renameCollection("people").ok, 1);
assert.equal(tour.passing.insertOne({ _id: 1 }).acknowledged, true);
assert.equal(tour.passing.drop(), true);
assert.equal(tour.passing.insertOne({ _id: 1 }).acknowledged, true);
assert.equal(tour.passing.find().toArray().length, 1);

assert.equal(tour.people.deleteMany({ tenant: "x" }).deletedCount, 2);
assert.equal(tour.dropDatabase().ok, 1);
print("tour ok");
