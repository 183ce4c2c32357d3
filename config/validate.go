package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Validate reports everything that cannot be right, each with its key and what would be.
func (c Config) Validate() error {
	var p problems
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		p.add("listen", "%q is not HOST:PORT", c.Listen)
	}
	if _, _, err := net.SplitHostPort(c.Admin.Listen); c.Admin.Listen != "" && err != nil {
		p.add("admin.listen", "%q is not HOST:PORT", c.Admin.Listen)
	}
	if c.MaxPartitionBytes < 1 {
		p.add("maxPartitionBytes", "must be at least 1 byte")
	}
	c.validateBackends(&p)
	c.validateCollections(&p)
	c.validateLog(&p)
	c.validateTLS(&p)
	c.validatePool(&p)
	c.validateReshape(&p)
	p.atLeast("drainTimeout", c.DrainTimeout, 0)
	return errors.Join(p...)
}

// problems are what Validate has found so far.
type problems []error

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s: %w", path, fmt.Errorf(format, args...)))
}

func (p *problems) atLeast(path string, d, least time.Duration) {
	if d < least {
		p.add(path, "%s is too short; at least %s", d, least)
	}
}

func (p *problems) readable(path, name string) {
	if name == "" {
		return
	}
	f, err := os.Open(name)
	if err != nil {
		p.add(path, "%w", err)
		return
	}
	f.Close()
}

func (c Config) validateBackends(p *problems) {
	if len(c.Backends) == 0 {
		p.add("backends", "none is given; name at least one, as --backend ID=URI or under backends: in the file")
		return
	}
	for _, id := range sortedNames(c.Backends) {
		// The driver's errors may quote a password; it is enough to say where it is.
		if err := options.Client().ApplyURI(c.Backends[id]).Validate(); err != nil {
			p.add("backends."+id, "not a connection string that drivers take (mongodb://HOST:PORT/…)")
		}
	}
	if c.Catalog == "" || c.Backends[c.Catalog] != "" {
		return
	}
	if !strings.Contains(c.Catalog, "://") {
		p.add("catalog", "%q is neither a backend's id (%s) nor a connection string", c.Catalog, strings.Join(sortedNames(c.Backends), ", "))
	} else if err := options.Client().ApplyURI(c.Catalog).Validate(); err != nil {
		p.add("catalog", "not a connection string that drivers take (mongodb://HOST:PORT/…)")
	}
}

func (c Config) validateCollections(p *problems) {
	for _, ns := range sortedNames(c.Collections) {
		declared := c.Collections[ns]
		path := "collections." + ns
		if db, coll, ok := strings.Cut(ns, "."); !ok || db == "" || coll == "" {
			p.add(path, "a collection is named DATABASE.COLLECTION")
		}
		if declared.Key == "" {
			p.add(path+".key", "is missing: the field that places a document")
		}
		if slices.Contains(strings.Split(declared.Key, "."), "") && declared.Key != "" || strings.HasPrefix(declared.Key, "$") {
			p.add(path+".key", "%q is not a field's path", declared.Key)
		}
		if declared.Partitions < 0 || declared.Partitions > 8192 {
			p.add(path+".partitions", "must be between 0 and 8192")
		}
	}
}

func (c Config) validateLog(p *problems) {
	if level, err := zerolog.ParseLevel(c.Log.Level); err != nil || level < zerolog.DebugLevel || level > zerolog.ErrorLevel {
		p.add("log.level", "%q is not one of debug, info, warn, error", c.Log.Level)
	}
	if c.Log.Format != "json" && c.Log.Format != "text" {
		p.add("log.format", "%q is neither json nor text", c.Log.Format)
	}
	p.atLeast("log.slowRequest", c.Log.SlowRequest, 0)
}

func (c Config) validateTLS(p *problems) {
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		p.add("tls", "certFile and keyFile need each other")
	}
	if c.TLS.CAFile != "" && c.TLS.CertFile == "" {
		p.add("tls.caFile", "needs certFile and keyFile")
	}
	if c.TLS.RequireClientCert && c.TLS.CAFile == "" {
		p.add("tls.requireClientCert", "needs caFile")
	}
	p.readable("tls.certFile", c.TLS.CertFile)
	p.readable("tls.keyFile", c.TLS.KeyFile)
	p.readable("tls.caFile", c.TLS.CAFile)
	p.readable("backendTLS.caFile", c.BackendTLS.CAFile)
	p.readable("backendTLS.certKeyFile", c.BackendTLS.CertKeyFile)
}

func (c Config) validatePool(p *problems) {
	if c.Pool.MaxConns < 1 {
		p.add("pool.maxConns", "must be at least 1")
	}
	if c.Pool.MaxWaiters < 1 {
		p.add("pool.maxWaiters", "must be at least 1")
	}
	p.atLeast("pool.selectionTimeout", c.Pool.SelectionTimeout, time.Millisecond)
	p.atLeast("pool.connectTimeout", c.Pool.ConnectTimeout, time.Millisecond)
	p.atLeast("pool.idleTimeout", c.Pool.IdleTimeout, time.Second)
	p.atLeast("pool.heartbeatInterval", c.Pool.HeartbeatInterval, 500*time.Millisecond) // the driver's own floor
}

func (c Config) validateReshape(p *problems) {
	r := c.Reshape
	p.atLeast("transactions.lifetime", c.Transactions.Lifetime, time.Millisecond)
	for path, d := range map[string]time.Duration{
		"leaseRenew": r.LeaseRenew, "leaseMargin": r.LeaseMargin, "burnAfter": r.BurnAfter, "backoffMin": r.BackoffMin, "gateWait": r.GateWait,
		"standalonePause": r.StandalonePause, "drainLimit": r.DrainLimit, "checkInterval": r.CheckInterval, "sweepInterval": r.SweepInterval,
	} {
		p.atLeast("reshape."+path, d, time.Millisecond)
	}
	p.atLeast("reshape.retryWindow", r.RetryWindow, 0)
	if r.SweepInterval > time.Hour {
		p.add("reshape.sweepInterval", "%s is too long: what is on record of dropped collections is kept for two hours, so that two sweeps see it; at most 1h", r.SweepInterval)
	}
	if least := 2*r.LeaseRenew + r.LeaseMargin; r.Lease != 0 && r.Lease < least {
		p.add("reshape.lease", "%s leaves no room for a lost renewal: at least twice leaseRenew and leaseMargin, %s", r.Lease, least)
	}
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
