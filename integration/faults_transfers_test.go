package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

const (
	transferGroups   = 4 // values of the shard key: a group is always in one partition, so on one backend
	transferAccounts = 5 // of each group
	accountBegins    = 1000
	firstTransfer    = 1_000_000
)

// transfers move money between the accounts of a group, in transactions. Each one leaves a document with an id of its own beside, so that whoever looks knows which were applied.
type transfers struct {
	mu    sync.Mutex
	next  int64
	acked map[int64]bool
	// looks counts the snapshots in which the sum was right.
	looks int
	// wrong is what a snapshot has shown that must not be.
	wrong error
	// forgetful says that the servers' snapshots may lack, after a kill and until the next write, what was made since the last checkpoint; blind counts such.
	forgetful bool
	blind     int
}

type account struct {
	ID int64 `bson:"_id"`
	K  int
	N  int64
	// From and To are set in the documents that transfers leave.
	From, To *int64
}

func newTransfers(t *testing.T, c *mongo.Collection, forgetful bool) *transfers {
	t.Helper()
	for g := range transferGroups {
		for a := range transferAccounts {
			if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: accountID(g, a)}, {Key: "k", Value: g}, {Key: "n", Value: int64(accountBegins)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &transfers{acked: map[int64]bool{}, next: firstTransfer, forgetful: forgetful}
}

func accountID(group, account int) int64 { return int64(group*100 + account) }

// step makes one transfer, or looks at a group.
func (x *transfers) step(ctx context.Context, c *mongo.Collection, r *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	g := r.IntN(transferGroups)
	if r.IntN(3) == 0 {
		return x.look(ctx, c, g)
	}
	x.mu.Lock()
	x.next++
	id := x.next
	x.mu.Unlock()
	from, to := accountID(g, r.IntN(transferAccounts)), accountID(g, r.IntN(transferAccounts))
	err := x.transfer(ctx, c, id, g, from, to, r.Int64N(100))
	if err == nil {
		x.mu.Lock()
		x.acked[id] = true
		x.mu.Unlock()
	}
	return err
}

func (x *transfers) transfer(ctx context.Context, c *mongo.Collection, id int64, g int, from, to, n int64) error {
	s, err := c.Database().Client().StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(context.WithoutCancel(ctx))
	add := func(ctx context.Context, account, n int64) error {
		res, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: account}, {Key: "k", Value: g}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: n}}}})
		if err == nil && res.MatchedCount != 1 {
			x.blame(fmt.Errorf("account %d was not found", account))
		}
		return err
	}
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		if err := add(ctx, from, -n); err != nil {
			return nil, err
		}
		if _, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: g}, {Key: "n", Value: n}, {Key: "from", Value: from}, {Key: "to", Value: to}}); err != nil {
			return nil, err
		}
		return nil, add(ctx, to, n)
	})
	if mongo.IsDuplicateKeyError(err) {
		return nil // committed before: a server that was killed since answers the repeated commit as if nothing had been, and the driver begins anew
	}
	return err
}

// look reads a group in a snapshot: the accounts must have what they began with and what its transfers say.
func (x *transfers) look(ctx context.Context, c *mongo.Collection, g int) error {
	s, err := c.Database().Client().StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(context.WithoutCancel(ctx))
	var docs []account
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		cur, err := c.Find(ctx, bson.D{{Key: "k", Value: g}})
		if err != nil {
			return nil, err
		}
		return nil, cur.All(ctx, &docs)
	}, options.Transaction().SetReadConcern(readconcern.Snapshot()))
	if err != nil {
		return err
	}
	_, wrong := balance(docs)
	if wrong != nil && !(x.forgetful && errors.Is(wrong, errAccountsMissing)) {
		x.blame(fmt.Errorf("group %d in a snapshot: %w", g, wrong))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if wrong != nil {
		x.blind++
	} else {
		x.looks++
	}
	return nil
}

var errAccountsMissing = errors.New("accounts are missing")

// balance holds the accounts of one group against its transfers, and returns those.
func balance(docs []account) (applied map[int64]bool, err error) {
	has, want := map[int64]int64{}, map[int64]int64{}
	applied = map[int64]bool{}
	for _, d := range docs {
		if d.From == nil {
			if _, twice := has[d.ID]; twice {
				return nil, fmt.Errorf("account %d is there twice", d.ID)
			}
			has[d.ID] = d.N
			continue
		}
		if applied[d.ID] {
			return nil, fmt.Errorf("transfer %d is there twice", d.ID)
		}
		applied[d.ID] = true
		want[*d.From] -= d.N
		want[*d.To] += d.N
	}
	if len(has) != transferAccounts {
		return nil, fmt.Errorf("%w: %d accounts, want %d, among %d documents", errAccountsMissing, len(has), transferAccounts, len(docs))
	}
	for id, n := range has {
		if n != accountBegins+want[id] {
			return nil, fmt.Errorf("account %d has %d, and by its %d transfers %d", id, n, len(applied), accountBegins+want[id])
		}
	}
	return applied, nil
}

func (x *transfers) blame(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wrong == nil {
		x.wrong = err
	}
}

// check looks at all groups once more, when nothing goes on any longer: every acknowledged transfer was applied.
func (x *transfers) check(ctx context.Context, c *mongo.Collection) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.wrong != nil {
		return x.wrong
	}
	all := map[int64]bool{}
	for g := range transferGroups {
		cur, err := c.Find(ctx, bson.D{{Key: "k", Value: g}})
		if err != nil {
			return err
		}
		var docs []account
		if err := cur.All(ctx, &docs); err != nil {
			return err
		}
		applied, err := balance(docs)
		if err != nil {
			return fmt.Errorf("group %d: %w", g, err)
		}
		for id := range applied {
			all[id] = true
		}
	}
	for id := range x.acked {
		if !all[id] {
			return fmt.Errorf("transfer %d was acknowledged and not applied", id)
		}
	}
	return nil
}
