package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Names of the catalog's collections.
const (
	mapsColl      = "maps"
	backendsColl  = "backends"
	databasesColl = "databases"
	settingsColl  = "settings"
	countersColl  = "counters"
	nsColl        = "collections"
	changelogColl = "changelog"
	pulsesColl    = "pulses"
)

// ErrMapExists says that somebody else has inserted that version of a map; the snapshot has been refreshed.
var ErrMapExists = errors.New("catalog: that version of the map exists")

// Store is the catalog in its database, and the snapshot that requests read. It is safe for concurrent use.
type Store struct {
	db  *mongo.Database
	log zerolog.Logger

	snap atomic.Pointer[Snapshot]
	// watching says that a change stream tells of changes.
	watching atomic.Bool

	// mu orders refreshes, and with them what listeners are told.
	mu        sync.Mutex
	listeners []func(*Snapshot)
	// onReshape are told of changes of records.
	onReshape []func(Reshape)
}

// Open reads the catalog through client, which belongs to the catalog backend: it must be a replica set, since majority means nothing
// on a standalone. Everything is written and read with majority.
func Open(ctx context.Context, client *mongo.Client, log zerolog.Logger) (*Store, error) {
	db := client.Database(DB, options.Database().
		SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority()))
	var hello struct {
		SetName string `bson:"setName"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return nil, fmt.Errorf("the catalog's backend does not answer: %w", err)
	}
	if hello.SetName == "" {
		return nil, errors.New("the catalog must be a replica set, and its backend is a standalone; a standalone becomes a replica set of one by --replSet and rs.initiate()")
	}
	s := &Store{db: db, log: log}
	if err := s.ensureClusterID(ctx); err != nil {
		return nil, err
	}
	return s, s.Refresh(ctx)
}

// DB is the catalog's database, for what is only shown or only kept: history, the config database's other collections.
func (s *Store) DB() *mongo.Database { return s.db }

// Snapshot returns what was read last. It never blocks.
func (s *Store) Snapshot() *Snapshot { return s.snap.Load() }

// OnChange has f called with the snapshot now and after every refresh that read one, in order and one at a time.
func (s *Store) OnChange(f func(*Snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, f)
	f(s.snap.Load())
}

// Refresh reads the catalog and tells the listeners.
func (s *Store) Refresh(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := s.read(ctx)
	if err != nil {
		return err
	}
	// Reads of one refresh are not one moment: a map is never allowed to go back.
	if old := s.snap.Load(); old != nil {
		for ns, m := range old.Maps {
			if n := next.Maps[ns]; n == nil || n.V < m.V {
				next.Maps[ns] = m
			}
		}
		for db, m := range old.Primaries {
			if n := next.Primaries[db]; n == nil || n.V < m.V {
				next.Primaries[db] = m
			}
		}
	}
	next.setPrimaries()
	s.snap.Store(next)
	for _, f := range s.listeners {
		f(next)
	}
	return nil
}

func (s *Store) read(ctx context.Context) (*Snapshot, error) {
	next := &Snapshot{Maps: map[string]*Map{}, Primaries: map[string]*Map{}, Databases: map[string]*Database{}, Backends: map[string]*Backend{}, Collections: map[string]CollectionSettings{}}
	for _, step := range []func(context.Context, *Snapshot) error{s.readMaps, s.readDatabases, s.readBackends, s.readCollections, s.readSettings} {
		if err := step(ctx, next); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// readMaps reads the newest map of every namespace.
func (s *Store) readMaps(ctx context.Context, next *Snapshot) error {
	cur, err := s.db.Collection(mapsColl).Aggregate(ctx, mongo.Pipeline{
		{{Key: "$sort", Value: bson.D{{Key: "_id.ns", Value: 1}, {Key: "_id.v", Value: -1}}}},
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$_id.ns"}, {Key: "m", Value: bson.D{{Key: "$first", Value: "$$ROOT"}}}}}},
	})
	if err != nil {
		return fmt.Errorf("read maps: %w", err)
	}
	var rows []struct {
		M mapDoc `bson:"m"`
	}
	if err := cur.All(ctx, &rows); err != nil {
		return fmt.Errorf("read maps: %w", err)
	}
	for _, row := range rows {
		m, err := decodeMap(row.M)
		if err != nil {
			return err
		}
		next.put(m)
	}
	return nil
}

// NewestMap reads the newest map of a namespace from the catalog, past the snapshot and linearizably: a primary that has been deposed without
// knowing it yet does not answer. It is nil if there is none; otherwise the snapshot has it then, too. Whoever is about to drop a physical collection asks this, right before.
func (s *Store) NewestMap(ctx context.Context, ns string) (*Map, error) {
	m, err := s.findMap(ctx, bson.D{{Key: "_id.ns", Value: ns}}, options.FindOne().SetSort(bson.D{{Key: "_id.v", Value: -1}}))
	if err != nil || m == nil {
		return nil, err
	}
	if db, _ := SplitNS(ns); s.Snapshot().Databases[db] != nil && s.knows(m) {
		err = s.adopt(m) // gates may wait for it
	}
	return m, err
}

// RefreshMap takes the newest map of one namespace into the snapshot.
func (s *Store) RefreshMap(ctx context.Context, ns string) error {
	m, err := s.NewestMap(ctx, ns)
	if err != nil {
		return err
	}
	if db, _ := SplitNS(ns); s.Snapshot().Databases[db] == nil || m != nil && !s.knows(m) {
		return s.Refresh(ctx)
	}
	return nil
}

// knows reports whether the snapshot has all backends that a map names.
func (s *Store) knows(m *Map) bool {
	snap := s.Snapshot()
	for _, p := range m.Partitions {
		if snap.Backends[p.Backend] == nil {
			return false
		}
	}
	return true
}

// MapAt reads one version of a namespace's map; nil if there is none.
func (s *Store) MapAt(ctx context.Context, ns string, v int64) (*Map, error) {
	return s.findMap(ctx, bson.D{{Key: "_id", Value: mapID{ns, v}}}, options.FindOne())
}

const (
	// linearizableWait bounds a linearizable read, which waits for a majority.
	linearizableWait = 5 * time.Second
	// insertWait bounds the insert of a map, for which gates are closed. One whose answer is late is found out about by reading.
	insertWait = 2 * time.Second
)

func (s *Store) findMap(ctx context.Context, filter bson.D, o *options.FindOneOptionsBuilder) (*Map, error) {
	ctx, cancel := context.WithTimeout(ctx, linearizableWait)
	defer cancel()
	var d mapDoc
	c := s.db.Collection(mapsColl, options.Collection().SetReadConcern(readconcern.Linearizable()))
	err := c.FindOne(ctx, filter, o).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the newest map: %w", err)
	}
	return decodeMap(d)
}

// Named reports whether the newest map of any namespace names a physical collection, by reading the catalog past the snapshot and linearizably. Whoever is
// about to drop a physical collection asks this, right before; its name does not tell whose it is, since a rename takes it to another
// namespace. A rename between two reads could hide it from both, so that "no" is only believed twice.
func (s *Store) Named(ctx context.Context, backend, db, physical string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*linearizableWait)
	defer cancel()
	c := s.db.Collection(mapsColl, options.Collection().SetReadConcern(readconcern.Linearizable()))
	for range 2 {
		var spaces []string
		err := c.Distinct(ctx, "_id.ns", bson.D{
			{Key: "partitions", Value: bson.D{{Key: "$elemMatch", Value: bson.D{{Key: "backend", Value: backend}, {Key: "physical", Value: physical}}}}}}).Decode(&spaces)
		if err != nil {
			return false, fmt.Errorf("look for maps that name a physical collection: %w", err)
		}
		for _, ns := range spaces {
			if in, _ := SplitNS(ns); in != db {
				continue
			}
			m, err := s.NewestMap(ctx, ns)
			if err != nil {
				return false, err
			}
			if m.Names(backend, physical) {
				return true, nil
			}
		}
	}
	return false, nil
}

// InsertMap inserts a version of a map, which is a compare-and-swap: ErrMapExists says that somebody was faster. The snapshot has
// the map then, or whatever was newer. Any other error leaves it unknown whether the map was inserted.
func (s *Store) InsertMap(ctx context.Context, m *Map) error {
	if m.Created.IsZero() {
		m.Created = time.Now().UTC().Truncate(time.Millisecond)
	}
	if err := m.Check(); err != nil {
		return err
	}
	wctx, cancel := context.WithTimeout(ctx, insertWait)
	_, err := s.db.Collection(mapsColl).InsertOne(wctx, encodeMap(m))
	cancel()
	if err != nil && !alreadyThere(err) {
		return fmt.Errorf("insert map %s v%d: %w", m.NS, m.V, err)
	}
	if err == nil {
		return s.adopt(m) // gates wait for it: the rest of the catalog need not be read
	}
	if err := s.Refresh(ctx); err != nil {
		return err
	}
	return ErrMapExists
}

// alreadyThere reports whether an insert was refused because of a document that a majority has: the
// server waits for its latest write then, and says if that was in vain. Without a majority a change
// of the primary may undo that document.
func alreadyThere(err error) bool {
	var we mongo.WriteException
	if errors.As(err, &we) && we.WriteConcernError != nil {
		return false
	}
	return mongo.IsDuplicateKeyError(err)
}

// adopt takes a map that was just inserted into the snapshot, as it would be read, and tells the listeners.
func (s *Store) adopt(m *Map) error {
	read, err := decodeMap(encodeMap(m))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.snap.Load()
	if known := old.newest(m.NS); known != nil && known.V >= m.V {
		return nil
	}
	next := *old
	next.Maps, next.Primaries, next.Databases = maps.Clone(old.Maps), maps.Clone(old.Primaries), maps.Clone(old.Databases)
	next.put(read)
	next.setPrimaries()
	s.snap.Store(&next)
	for _, f := range s.listeners {
		f(&next)
	}
	return nil
}

// InsertMaps inserts versions of several namespaces' maps, all or none: what InsertMap says of one holds for them together. It
// is how a rename takes a collection from one namespace to another at one moment.
func (s *Store) InsertMaps(ctx context.Context, maps ...*Map) error {
	docs := make([]any, len(maps))
	for i, m := range maps {
		if m.Created.IsZero() {
			m.Created = time.Now().UTC().Truncate(time.Millisecond)
		}
		if err := m.Check(); err != nil {
			return err
		}
		docs[i] = encodeMap(m)
	}
	session, err := s.db.Client().StartSession()
	if err != nil {
		return fmt.Errorf("insert maps: %w", err)
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		return s.db.Collection(mapsColl).InsertMany(ctx, docs)
	}, options.Transaction().SetWriteConcern(writeconcern.Majority()))
	if err != nil && !mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("insert maps of %s: %w", maps[0].NS, err)
	}
	lost := err != nil
	if err := s.Refresh(ctx); err != nil {
		return err
	}
	if lost {
		return ErrMapExists
	}
	return nil
}

// numbersID is the counter of NextNumber.
const numbersID = "physical"

// NextNumber returns a number that was never returned before, for the name of a physical collection
// or to count a change of a map.
func (s *Store) NextNumber(ctx context.Context) (uint64, error) {
	var d struct {
		N int64 `bson:"n"`
	}
	err := s.db.Collection(countersColl).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: numbersID}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&d)
	if err != nil {
		return 0, fmt.Errorf("take a number for a physical name: %w", err)
	}
	return uint64(d.N), nil
}
