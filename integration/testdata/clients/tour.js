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
const distribution = tour.people.getShardDistribution();
print(distribution);
const status = sh.status();
print(status);
const text = JSON.stringify(status.value ?? status);
assert.ok(text.includes("tour.people"), text);
assert.ok(text.includes(to), text);
print(sh.getBalancerState());

assert.equal(tour.people.deleteMany({ tenant: "x" }).deletedCount, 1);
assert.equal(tour.dropDatabase().ok, 1);
print("tour ok");
