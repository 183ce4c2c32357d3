package backend

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// identityLimit is how long a server may take to say who this proxy is to it.
const identityLimit = 5 * time.Second

// identity remembers under which uids a backend keeps this proxy's sessions.
type identity struct {
	mu   sync.Mutex
	uids [][sha256.Size]byte
	// created is how many connections had been made when the server was asked. A newer one may have
	// been authenticated as somebody else.
	created int64
}

// SessionUIDs returns the uids under which the backend may keep sessions of this proxy, of which
// each session has one. A server makes the uid of the user who is logged in, the SHA-256 of
// "user@db", and of nothing where it has no access control. So it is asked who this proxy is: a
// connection string does not tell, as with a certificate, whose subject is the user. A server
// without access control lets users log in and still makes the uid of nothing, so that one is
// always among them. The answer is kept until a connection is made anew. A server that does not
// answer is an error: with a wrong uid no record is found, and a repeated write is applied twice.
func (b *Backend) SessionUIDs(ctx context.Context) ([][sha256.Size]byte, error) {
	i := &b.identity
	created := b.stats.created.Load()
	i.mu.Lock()
	uids, current := i.uids, i.created == created
	i.mu.Unlock()
	if uids != nil && current {
		return uids, nil
	}
	uids, err := b.askIdentity(ctx)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.uids, i.created = uids, created // what was connected meanwhile has it asked again
	return uids, nil
}

func (b *Backend) askIdentity(ctx context.Context) ([][sha256.Size]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, identityLimit)
	defer cancel()
	body, err := b.Run(ctx, "admin", bson.D{{Key: "connectionStatus", Value: 1}})
	if err != nil {
		return nil, err
	}
	users, ok := body.Lookup("authInfo", "authenticatedUsers").ArrayOK()
	if !ok {
		return nil, wire.Errorf(wire.OperationFailed, "backend '%s' does not say which users are logged in", b.cfg.ID)
	}
	values, err := users.Values()
	if err != nil {
		return nil, fmt.Errorf("backend %s: the users that are logged in: %w", b.cfg.ID, err)
	}
	uids := [][sha256.Size]byte{sha256.Sum256(nil)}
	for _, v := range values {
		doc, _ := v.DocumentOK()
		user, named := doc.Lookup("user").StringValueOK()
		db, placed := doc.Lookup("db").StringValueOK()
		if !named || !placed {
			return nil, wire.Errorf(wire.OperationFailed, "backend '%s' names a user that is logged in without a name or a database", b.cfg.ID)
		}
		uids = append(uids, sha256.Sum256([]byte(user+"@"+db)))
	}
	return uids, nil
}
