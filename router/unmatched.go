package router

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

var _ = register(func(r *Router) []Command {
	return []Command{
		{Name: "listUnmatchedCollections", Admin: true, Help: "lists collections on backends that belong to nothing and are left alone", Run: r.listUnmatched},
	}
})

// maxUnmatched is how many collections one reply lists.
const maxUnmatched = 1000

// listUnmatched is a command of this proxy's own, for operators: collections that no map names and
// that no change has made or retired are never dropped, and somebody has to decide what they are.
func (r *Router) listUnmatched(ctx context.Context, _ *Request) (Reply, error) {
	all, err := r.cfg.Reshaper.Unmatched(ctx)
	if err != nil {
		return Reply{}, err
	}
	list := bson.A{}
	for _, d := range all[:min(len(all), maxUnmatched)] {
		list = append(list, d)
	}
	return docReply(bson.D{{Key: "collections", Value: list}, {Key: "total", Value: int64(len(all))}})
}
