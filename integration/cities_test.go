package integration

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet"
	"github.com/shardway/shardway/fleet/fleettest"
	"github.com/shardway/shardway/integration/running"
)

const (
	citiesBatch     = 2000
	readerPause     = 200 * time.Millisecond
	citiesShort     = 20_000          // cities that are loaded by default; all of them with SHARDWAY_CITIES_ALL=1
	citiesPartition = "400KB"         // the size that makes tens of partitions of them
	citiesBytes     = 400 << 10       // the same in bytes, as the configuration reads it
	citiesQuiet     = 5 * time.Minute // within which the splits of citiesShort end after the load
)

type city struct {
	ID      int32
	Country string
	Raw     bson.Raw
}

// readCities reads the real data, or skips the test and says why.
func readCities(t *testing.T) []city {
	t.Helper()
	path := os.Getenv("SHARDWAY_CITIES")
	if path == "" {
		path = filepath.Join("..", "..", "shared", "data", "cities.ndjson.gz")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("SHARDWAY_CITIES") == "" {
		t.Skipf("the real data are not there: %v; SHARDWAY_CITIES names them", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []city
	lines := bufio.NewScanner(z)
	for lines.Scan() {
		var d bson.D
		if err := bson.UnmarshalExtJSON(lines.Bytes(), false, &d); err != nil {
			t.Fatalf("line %d: %v", len(all)+1, err)
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		r := bson.Raw(raw)
		all = append(all, city{ID: r.Lookup("_id").Int32(), Country: r.Lookup("country").StringValue(), Raw: r})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(all) < 100_000 {
		t.Fatalf("%d cities only", len(all))
	}
	return all
}

// TestCities loads real data with partitions that soon are full, and looks at it from all sides while they split.
func TestCities(t *testing.T) {
	all := readCities(t)
	if os.Getenv("SHARDWAY_CITIES_ALL") == "" {
		// Every so manieth, so that every country's share stays.
		step := len(all) / citiesShort
		var some []city
		for i := 0; i < len(all); i += step {
			some = append(some, all[i])
		}
		all = some
	}
	for _, key := range []string{"country", "_id"} {
		t.Run("by"+key, func(t *testing.T) { loadCities(t, all, key) })
	}
}

// cities is one load: what has been acknowledged so far, for those who read meanwhile.
type cities struct {
	all    []city
	coll   *mongo.Collection
	client *mongo.Client

	mu   sync.Mutex
	sent int // cities whose insert has been begun
	done int // and acknowledged
}

func (c *cities) counts() (done, sent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done, c.sent
}

func loadCities(t *testing.T, all []city, key string) {
	f := fleettest.Start(t, backends)
	proxy := running.Test(t, f.Servers, "--max-partition-bytes", citiesPartition, "--reshape-check-interval", "200ms")
	client := connect(t, proxy.URI())
	command(t, client, "admin", shardCmd("geo.cities", key, bson.E{Key: "numInitialChunks", Value: 1}))
	c := &cities{all: all, coll: client.Database("geo").Collection("cities"), client: client}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	rounds := map[string]int{}
	var mu sync.Mutex
	for name, look := range map[string]func(context.Context) error{"sums": c.sums, "scan": c.scan, "sorted": c.sorted} {
		readers.Go(func() {
			for ctx.Err() == nil {
				if err := look(context.WithoutCancel(ctx)); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				mu.Lock()
				rounds[name]++
				mu.Unlock()
				select { // leave some of the machine to the splits
				case <-ctx.Done():
				case <-time.After(readerPause * time.Duration(1+len(all)/citiesShort)):
				}
			}
		})
	}
	c.load(t)
	partitions := quiet(t, f.Servers, "geo.cities", citiesQuiet*time.Duration(1+len(all)/citiesShort))
	cancel()
	readers.Wait()
	for _, name := range []string{"sums", "scan", "sorted"} {
		if rounds[name] == 0 {
			t.Errorf("%s never came to an end during the splits", name)
		}
	}
	t.Logf("%d cities in %d partitions; readers' rounds: %v", len(all), partitions, rounds)
	if partitions < 4 {
		t.Errorf("%d partitions only", partitions)
	}
	for name, look := range map[string]func(context.Context) error{"sums": c.sums, "scan": c.scan, "sorted": c.sorted, "contents": c.contents} {
		if err := look(t.Context()); err != nil {
			t.Errorf("at the end: %s: %v", name, err)
		}
	}
	noLeftovers(t, time.Minute, f.Servers)
}

func (c *cities) load(t *testing.T) {
	for from := 0; from < len(c.all); from += citiesBatch {
		to := min(from+citiesBatch, len(c.all))
		docs := make([]any, 0, citiesBatch)
		for _, city := range c.all[from:to] {
			docs = append(docs, city.Raw)
		}
		c.mu.Lock()
		c.sent = to
		c.mu.Unlock()
		if _, err := c.coll.InsertMany(t.Context(), docs, options.InsertMany().SetOrdered(false)); err != nil {
			t.Fatalf("cities %d to %d: %v", from, to, err)
		}
		c.mu.Lock()
		c.done = to
		c.mu.Unlock()
	}
}

// quiet waits until no partition can be split any further and none is being split, and returns how many there are.
func quiet(t *testing.T, servers []*fleet.Server, ns string, limit time.Duration) int {
	t.Helper()
	catalog := connect(t, servers[0].URI())
	n := 0
	eventually(t, limit, "the end of the splits", func(ctx context.Context) bool {
		running, err := catalog.Database("shardway").Collection("reshapes").CountDocuments(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		if running > 0 {
			return false
		}
		more, err := splittable(ctx, catalog, servers, ns, &n)
		if err != nil {
			t.Fatal(err)
		}
		return !more
	})
	return n
}

// splittable reports whether a partition of the newest map is over the limit and has more than one value of the key; n is how many there are.
func splittable(ctx context.Context, catalog *mongo.Client, servers []*fleet.Server, ns string, n *int) (bool, error) {
	var m struct {
		Key        bson.D
		Partitions []struct{ Backend, Physical string }
	}
	err := catalog.Database("shardway").Collection("maps").FindOne(ctx, bson.D{{Key: "_id.ns", Value: ns}},
		options.FindOne().SetSort(bson.D{{Key: "_id.v", Value: -1}})).Decode(&m)
	if err != nil {
		return false, err
	}
	*n = len(m.Partitions)
	db, _, _ := strings.Cut(ns, ".")
	for _, p := range m.Partitions {
		client, err := mongo.Connect(options.Client().ApplyURI(servers[p.Backend[1]-'1'].URI()))
		if err != nil {
			return false, err
		}
		more, err := overfull(ctx, client.Database(db), p.Physical, m.Key[0].Key)
		_ = client.Disconnect(context.WithoutCancel(ctx))
		if more || err != nil {
			return more, err
		}
	}
	return false, nil
}

func overfull(ctx context.Context, db *mongo.Database, coll, key string) (bool, error) {
	var stats struct{ Size int64 }
	if err := db.RunCommand(ctx, bson.D{{Key: "collStats", Value: coll}}).Decode(&stats); err != nil || stats.Size <= citiesBytes {
		return false, err
	}
	var one bson.Raw
	if err := db.Collection(coll).FindOne(ctx, bson.D{}).Decode(&one); err != nil {
		return false, err
	}
	n, err := db.Collection(coll).CountDocuments(ctx, bson.D{{Key: key, Value: bson.D{{Key: "$ne", Value: one.Lookup(key)}}}}, options.Count().SetLimit(1))
	return n > 0, err
}

// sums compares each country's number of cities with what must and what may be there.
func (c *cities) sums(ctx context.Context) error {
	least, _ := c.counts()
	cursor, err := c.coll.Aggregate(ctx, bson.A{bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$country"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}}})
	if err != nil {
		return err
	}
	var got []struct {
		ID string `bson:"_id"`
		N  int
	}
	if err := cursor.All(ctx, &got); err != nil {
		return err
	}
	_, most := c.counts()
	low, high := map[string]int{}, map[string]int{}
	for i, city := range c.all[:most] {
		if i < least {
			low[city.Country]++
		}
		high[city.Country]++
	}
	seen := map[string]bool{}
	for _, g := range got {
		if seen[g.ID] {
			return fmt.Errorf("%s twice", g.ID)
		}
		seen[g.ID] = true
		if g.N < low[g.ID] || g.N > high[g.ID] {
			return fmt.Errorf("%s has %d cities, not %d to %d", g.ID, g.N, low[g.ID], high[g.ID])
		}
	}
	for country := range maps.Keys(low) {
		if !seen[country] {
			return fmt.Errorf("%s is missing", country)
		}
	}
	return nil
}

// scan reads everything unsorted: what was there at the start once, what came meanwhile at most once.
func (c *cities) scan(ctx context.Context) error {
	least, _ := c.counts()
	ids, err := c.ids(ctx, options.Find().SetBatchSize(1000))
	if err != nil {
		return err
	}
	slices.Sort(ids)
	return c.once(ids, least)
}

// sorted reads everything in order.
func (c *cities) sorted(ctx context.Context) error {
	least, _ := c.counts()
	ids, err := c.ids(ctx, options.Find().SetBatchSize(3000).SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return err
	}
	if !slices.IsSorted(ids) {
		return errors.New("the sorted scan is not in order")
	}
	return c.once(ids, least)
}

func (c *cities) ids(ctx context.Context, o *options.FindOptionsBuilder) ([]int32, error) {
	cursor, err := c.coll.Find(ctx, bson.D{}, o.SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, err
	}
	defer cursor.Close(ctx)
	var ids []int32
	for cursor.Next(ctx) {
		ids = append(ids, cursor.Current.Lookup("_id").Int32())
	}
	return ids, cursor.Err()
}

// once takes sorted ids and compares them with the first cities: the first least of them must be there, and nothing twice.
func (c *cities) once(ids []int32, least int) error {
	for i := 1; i < len(ids); i++ {
		if ids[i] == ids[i-1] {
			return fmt.Errorf("_id %d twice", ids[i])
		}
	}
	_, most := c.counts()
	if len(ids) < least || len(ids) > most {
		return fmt.Errorf("%d documents, not %d to %d", len(ids), least, most)
	}
	for _, city := range c.all[:least] {
		if _, found := slices.BinarySearch(ids, city.ID); !found {
			return fmt.Errorf("_id %d is missing", city.ID)
		}
	}
	return nil
}

// contents compares every document byte for byte.
func (c *cities) contents(ctx context.Context) error {
	byID := make(map[int32]bson.Raw, len(c.all))
	for _, city := range c.all {
		byID[city.ID] = city.Raw
	}
	cursor, err := c.coll.Find(ctx, bson.D{})
	if err != nil {
		return err
	}
	defer cursor.Close(ctx)
	n := 0
	for ; cursor.Next(ctx); n++ {
		id := cursor.Current.Lookup("_id").Int32()
		if want := byID[id]; string(want) != string(cursor.Current) {
			return fmt.Errorf("_id %d is %v, not %v", id, cursor.Current, want)
		}
	}
	if cursor.Err() == nil && n != len(c.all) {
		return fmt.Errorf("%d documents, not %d", n, len(c.all))
	}
	return cursor.Err()
}
