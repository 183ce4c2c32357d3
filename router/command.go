package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/wire"
)

// Releaser gives back what a reply's bytes live in.
type Releaser interface{ Release() }

// Reply is a handler's answer. Body must be a whole document with ok:1; errors are returned as errors.
type Reply struct {
	Body bson.Raw
	// Message, if not nil, is what Body lies in, after wire.MsgBodyStart bytes for the headers: such a reply is sent from there, without a copy.
	Message *wire.Buffer
	// Owner, if not nil, is released after Body was written.
	Owner Releaser
}

// Handler answers one request. What it returns as an error becomes the reply {ok:0,…} by wire.AsError.
type Handler func(ctx context.Context, q *Request) (Reply, error)

// Command is one row of the table: what a command is.
type Command struct {
	// Name as in the manual; Aliases are further spellings that are accepted.
	Name    string
	Aliases []string
	// Admin says that it may only run on the database admin (13 elsewhere).
	Admin bool
	// Writes says that it changes data or metadata.
	Writes bool
	// NoAuth says that it is answered before authentication.
	NoAuth bool
	// Txn says that it may carry a txnNumber outside of a transaction (a retryable write).
	Txn bool
	// Sequence is the field that may come as a section of kind 1; empty if none may.
	Sequence string
	// API1 says that it belongs to the Stable API version 1.
	API1 bool
	// Help is what listCommands shows.
	Help string
	// Run answers it.
	Run Handler
}

// tables are the families of commands; each file adds its own.
var tables []func(*Router) []Command

func register(t func(*Router) []Command) struct{} {
	tables = append(tables, t)
	return struct{}{}
}

func joinTables(r *Router) map[string]*Command {
	m := map[string]*Command{}
	for _, table := range tables {
		for _, c := range table(r) {
			c := c
			for _, n := range append([]string{c.Name}, c.Aliases...) {
				if m[n] != nil {
					panic("BUG: command " + n + " is in two tables")
				}
				m[n] = &c
			}
		}
	}
	return m
}
