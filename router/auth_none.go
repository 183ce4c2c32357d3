package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardway/shardway/wire"
)

// Clients are not authenticated yet: what would is refused, so that nobody believes to be protected.
var _ = register(func(r *Router) []Command {
	list := []Command{
		{Name: "saslStart", NoAuth: true, Help: "begins an authentication (refused)", Run: r.noMechanism},
		{Name: "saslContinue", NoAuth: true, Help: "goes on with an authentication (refused)", Run: r.noMechanism},
		{Name: "authenticate", NoAuth: true, Help: "authenticates by certificate (refused)", Run: r.noMechanism},
		{Name: "usersInfo", Help: "lists users: none", Run: r.noUsers},
		{Name: "rolesInfo", Help: "lists roles: none", Run: r.noUsers},
		{Name: "dropAllUsersFromDatabase", Writes: true, Help: "drops a database's users: none", Run: r.dropNone},
		{Name: "dropAllRolesFromDatabase", Writes: true, Help: "drops a database's roles: none", Run: r.dropNone},
	}
	for _, name := range []string{"createUser", "updateUser", "dropUser", "grantRolesToUser", "revokeRolesFromUser",
		"createRole", "updateRole", "dropRole", "grantPrivilegesToRole", "revokePrivilegesFromRole", "grantRolesToRole", "revokeRolesFromRole"} {
		list = append(list, Command{Name: name, Writes: true, Help: "manages users and roles (refused)", Run: r.noUserManagement})
	}
	return list
})

func (r *Router) noMechanism(_ context.Context, q *Request) (Reply, error) {
	mechanism, _ := bsoncore.Document(q.Msg.Body).Lookup("mechanism").StringValueOK()
	return Reply{}, wire.Errorf(wire.MechanismUnavailable,
		"Received authentication for mechanism '%s' which is not enabled: this proxy does not authenticate clients yet; connect without credentials", mechanism)
}

func (r *Router) noUsers(_ context.Context, q *Request) (Reply, error) {
	field := "users"
	if q.Command.Name == "rolesInfo" {
		field = "roles"
	}
	return docReply(bson.D{{Key: field, Value: bson.A{}}})
}

// dropNone tells how many were dropped. Test suites begin with it.
func (r *Router) dropNone(context.Context, *Request) (Reply, error) {
	return docReply(bson.D{{Key: "n", Value: int32(0)}})
}

func (r *Router) noUserManagement(_ context.Context, q *Request) (Reply, error) {
	return Reply{}, wire.Errorf(wire.CommandNotSupported, "%s: this proxy does not authenticate clients yet, so it has no users or roles", q.Command.Name)
}
