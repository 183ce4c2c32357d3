package commands

import (
	"slices"
	"strings"
)

// Resource is what a privilege is about, as MongoDB's roles name it. The zero Resource is every collection of every
// database but local and config, system collections excepted.
type Resource struct {
	// Cluster is the deployment itself; Any is everything. Either stands alone.
	Cluster, Any bool
	// DB and Collection are a namespace; an empty one is all.
	DB, Collection string
}

// String writes the resource for people.
func (r Resource) String() string {
	switch {
	case r.Any:
		return "any resource"
	case r.Cluster:
		return "the cluster"
	case r.DB == "" && r.Collection == "":
		return "all databases"
	case r.Collection == "":
		return "the database " + r.DB
	case r.DB == "":
		return "the collections " + r.Collection + " of all databases"
	}
	return r.DB + "." + r.Collection
}

// Privilege is some actions on a resource.
type Privilege struct {
	Resource Resource
	Actions  []string
}

// String writes the privilege for people.
func (p Privilege) String() string {
	return strings.Join(p.Actions, ", ") + " on " + p.Resource.String()
}

func onCluster(actions ...string) Privilege { return Privilege{Resource{Cluster: true}, actions} }

func onAll(actions ...string) Privilege { return Privilege{Resource{}, actions} }

func onDB(db string, actions ...string) Privilege { return Privilege{Resource{DB: db}, actions} }

func onCollection(db, coll string, actions ...string) Privilege {
	return Privilege{Resource{DB: db, Collection: coll}, actions}
}

// covers reports whether what is granted on r holds for want. A grant on all databases excludes local, config and system
// collections: these take a grant that names them.
func (r Resource) covers(want Resource) bool {
	switch {
	case r.Any || want.Any:
		return r.Any
	case r.Cluster || want.Cluster:
		return r.Cluster && want.Cluster
	case r.DB == want.DB && r.Collection == want.Collection:
		return true
	}
	system := strings.HasPrefix(want.Collection, "system.")
	switch {
	case r.DB == "" && r.Collection == "":
		return !system && want.DB != "local" && want.DB != "config"
	case r.Collection == "":
		return r.DB == want.DB && !system
	case r.DB == "":
		return r.Collection == want.Collection
	}
	return false
}

// Lack is a privilege that is not had, and the rows that need it.
type Lack struct {
	Privilege
	Rows []Row
}

// Backend says which rows concern a backend.
type Backend struct {
	// HasCatalog says that the catalog lives on it.
	HasCatalog bool
	// Standalone says that it is no replica set.
	Standalone bool
}

func (b Backend) concerns(r *Row) bool {
	return !(r.SetOnly && b.Standalone) && (r.On != OnCatalog || b.HasCatalog)
}

// Missing compares the privileges that a backend's user has with those that the table needs there. fatal are those without
// which the product cannot work on that backend, limits those whose absence is felt by some commands only. Each action is
// told once, with all rows that need it.
func Missing(have []Privilege, b Backend) (fatal, limits []Lack) {
	rows := Rows()
	for i := range rows {
		r := &rows[i]
		if !b.concerns(r) {
			continue
		}
		for _, need := range r.Needs {
			for _, action := range need.Actions {
				if granted(have, need.Resource, action) {
					continue
				}
				if r.Without == "" {
					fatal = addLack(fatal, need.Resource, action, r)
				} else {
					limits = addLack(limits, need.Resource, action, r)
				}
			}
		}
	}
	limits = slices.DeleteFunc(limits, func(l Lack) bool { // told as fatal already
		return slices.ContainsFunc(fatal, func(f Lack) bool { return f.same(l.Resource, l.Actions[0]) })
	})
	return fatal, limits
}

func (l *Lack) same(on Resource, action string) bool {
	return l.Resource == on && l.Actions[0] == action
}

func addLack(list []Lack, on Resource, action string, r *Row) []Lack {
	for i := range list {
		if list[i].same(on, action) {
			list[i].Rows = append(list[i].Rows, *r)
			return list
		}
	}
	return append(list, Lack{Privilege{on, []string{action}}, []Row{*r}})
}

func granted(have []Privilege, on Resource, action string) bool {
	return slices.ContainsFunc(have, func(p Privilege) bool {
		return p.Resource.covers(on) && slices.Contains(p.Actions, action)
	})
}

// Role is everything that the table needs, one privilege a resource: what a backend's user is to be given so that nothing is
// refused.
func Role() []Privilege {
	var role []Privilege
	for _, r := range Rows() {
		for _, need := range r.Needs {
			i := slices.IndexFunc(role, func(p Privilege) bool { return p.Resource == need.Resource })
			if i < 0 {
				i, role = len(role), append(role, Privilege{Resource: need.Resource})
			}
			role[i].Actions = append(role[i].Actions, need.Actions...)
		}
	}
	for i := range role {
		slices.Sort(role[i].Actions)
		role[i].Actions = slices.Compact(role[i].Actions)
	}
	// What all databases grant need not be said of one.
	role = slices.DeleteFunc(role, func(p Privilege) bool {
		return !slices.ContainsFunc(p.Actions, func(a string) bool {
			return !slices.ContainsFunc(role, func(other Privilege) bool {
				return other.Resource != p.Resource && other.Resource.covers(p.Resource) && slices.Contains(other.Actions, a)
			})
		})
	})
	slices.SortStableFunc(role, func(a, b Privilege) int { return strings.Compare(a.Resource.order(), b.Resource.order()) })
	return role
}

// order sorts the cluster first, then all databases, then single ones.
func (r Resource) order() string {
	if r.Cluster {
		return ""
	}
	return " " + r.DB + "." + r.Collection
}
