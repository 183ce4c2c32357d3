package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/config"
)

// openBackends opens every backend of the configuration. It waits for none: a backend may be down when
// the proxy starts. On an error nothing stays open.
func openBackends(ctx context.Context, cfg config.Config, log zerolog.Logger) (*backend.Set, error) {
	set := &backend.Set{}
	for _, id := range backendIDs(cfg) {
		b, err := openBackend(ctx, cfg, id, cfg.Backends[id], log)
		if err == nil {
			err = set.Add(b)
		}
		if err != nil {
			return nil, errors.Join(err, closeBackends(ctx, set))
		}
	}
	return set, nil
}

// errUnexamined bars a backend between its opening and its admission.
var errUnexamined = errors.New("which server it is has not been seen yet")

// openBackend opens a backend, barred until it is admitted.
func openBackend(ctx context.Context, cfg config.Config, id, uri string, log zerolog.Logger) (*backend.Backend, error) {
	uri, err := withTLS(uri, cfg.BackendTLS)
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w", id, err)
	}
	b, err := backend.Open(ctx, backend.Config{
		ID:                id,
		URI:               uri,
		Log:               log,
		MaxConns:          cfg.Pool.MaxConns,
		MaxWaiters:        cfg.Pool.MaxWaiters,
		SelectionTimeout:  cfg.Pool.SelectionTimeout,
		ConnectTimeout:    cfg.Pool.ConnectTimeout,
		IdleTimeout:       cfg.Pool.IdleTimeout,
		HeartbeatInterval: cfg.Pool.HeartbeatInterval,
	})
	if err != nil {
		return nil, err
	}
	b.Bar(errUnexamined)
	return b, nil
}

func closeBackends(ctx context.Context, set *backend.Set) error {
	var errs []error
	for _, b := range set.All() {
		errs = append(errs, b.Close(ctx))
	}
	return errors.Join(errs...)
}

func backendIDs(cfg config.Config) []string {
	ids := make([]string, 0, len(cfg.Backends))
	for id := range cfg.Backends {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

// catalogBackend is the id of the backend that holds the catalog: the one named, the one that the
// catalog's connection string means, or the first by id.
func catalogBackend(cfg config.Config) (string, error) {
	ids := backendIDs(cfg)
	if cfg.Catalog == "" {
		return ids[0], nil
	}
	if cfg.Backends[cfg.Catalog] != "" {
		return cfg.Catalog, nil
	}
	wanted := options.Client().ApplyURI(cfg.Catalog).Hosts
	for _, id := range ids {
		for _, host := range options.Client().ApplyURI(cfg.Backends[id]).Hosts {
			if slices.Contains(wanted, host) {
				return id, nil
			}
		}
	}
	return "", errors.New("catalog: its connection string shares no host with any backend; the catalog lives on one of the backends: name that")
}

// withTLS adds the configured TLS files to a connection string that has none of its own.
func withTLS(uri string, c config.BackendTLS) (string, error) {
	if c.CAFile == "" && c.CertKeyFile == "" {
		return uri, nil
	}
	base, query, _ := strings.Cut(uri, "?")
	if _, hosts, ok := strings.Cut(base, "://"); ok && !strings.Contains(hosts, "/") {
		base += "/"
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", errors.New("its connection string's options cannot be read")
	}
	has := func(name string) bool {
		for given := range values {
			if strings.EqualFold(given, name) {
				return true
			}
		}
		return false
	}
	add := func(name, value string) {
		if value != "" && !has(name) {
			values.Set(name, value)
		}
	}
	if !has("ssl") {
		add("tls", "true")
	}
	add("tlsCAFile", c.CAFile)
	add("tlsCertificateKeyFile", c.CertKeyFile)
	return base + "?" + values.Encode(), nil
}

// listen opens the clients' listener, with TLS where it is configured.
func listen(cfg config.Config) (net.Listener, error) {
	var tlsConfig *tls.Config
	if cfg.TLS.CertFile != "" {
		var err error
		if tlsConfig, err = serverTLS(cfg.TLS); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		l = tls.NewListener(l, tlsConfig)
	}
	return l, nil
}

func serverTLS(c config.TLS) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls.certFile and tls.keyFile: %w", err)
	}
	t := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if c.CAFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("tls.caFile: %w", err)
	}
	t.ClientCAs = x509.NewCertPool()
	if !t.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.caFile: %s holds no certificate", c.CAFile)
	}
	t.ClientAuth = tls.VerifyClientCertIfGiven
	if c.RequireClientCert {
		t.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return t, nil
}
