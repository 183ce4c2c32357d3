package backend

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Defaults of Config.
const (
	// DefaultMaxConns bounds a pool when Config.MaxConns is zero. A pool smaller than the number of
	// requests in flight costs throughput, so it is generous.
	DefaultMaxConns = 256
	// DefaultMaxWaiters bounds the requests that wait for a connection of one host.
	DefaultMaxWaiters = 10_000
	// DefaultSelectionTimeout is how long a request waits for a usable server: drivers' own default. A failover takes electionTimeoutMillis (10 s) and up to 15 %,
	// then a vote and the new primary's catching up.
	DefaultSelectionTimeout = 30 * time.Second
	// DefaultConnectTimeout bounds dialling, TLS and authentication of one connection.
	DefaultConnectTimeout = 10 * time.Second
	// DefaultIdleTimeout is when an unused connection is closed. It is below the ten minutes after
	// which network equipment likes to forget a connection.
	DefaultIdleTimeout = 5 * time.Minute
)

// maxDialing bounds the connections of one host that are being made at once: a burst after a
// failover shall not become a storm of handshakes.
const maxDialing = 16

// Config describes one backend. The zero value of every field but ID and URI means its default.
type Config struct {
	// ID is the operator's name for the backend; it appears in errors and logs.
	ID string
	// URI is a connection string as drivers take it, with credentials, TLS and replica set options.
	// It is never logged nor shown.
	URI string
	// Log receives what an operator should know: hosts found and lost. The zero Logger is silent.
	Log zerolog.Logger

	// MaxConns bounds the connections to one host; 0 means DefaultMaxConns.
	MaxConns int
	// MaxWaiters bounds the requests waiting for a connection to one host; 0 means DefaultMaxWaiters.
	// One more fails at once with an UnsentError.
	MaxWaiters int
	// SelectionTimeout bounds the wait for a usable server and connection; 0 means DefaultSelectionTimeout.
	// A request's own deadline applies when it is earlier.
	SelectionTimeout time.Duration
	// ConnectTimeout bounds making one connection; 0 means the URI's connectTimeoutMS or DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// IdleTimeout closes connections unused for that long; 0 means the URI's maxIdleTimeMS or DefaultIdleTimeout.
	IdleTimeout time.Duration
	// HeartbeatInterval is how often the servers are asked for their state; 0 means the driver's ten
	// seconds (servers that stream their state answer at once whatever it is).
	HeartbeatInterval time.Duration
}

// settle checks c, reads its URI and fills in the defaults.
func (c *Config) settle() (*options.ClientOptions, error) {
	if c.ID == "" {
		return nil, errors.New("backend: an id is required")
	}
	opts := options.Client().ApplyURI(c.URI)
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("backend %s: its connection string: %w", c.ID, err)
	}
	if opts.LoadBalanced != nil && *opts.LoadBalanced {
		return nil, fmt.Errorf("backend %s: its connection string says loadBalanced=true; name the servers themselves", c.ID)
	}
	opts.Compressors = nil // nothing is gained between proxy and backend, and a reply is forwarded as it comes
	setInt(&c.MaxConns, 0, DefaultMaxConns)
	setInt(&c.MaxWaiters, 0, DefaultMaxWaiters)
	setDuration(&c.SelectionTimeout, nil, DefaultSelectionTimeout)
	setDuration(&c.ConnectTimeout, opts.ConnectTimeout, DefaultConnectTimeout)
	setDuration(&c.IdleTimeout, opts.MaxConnIdleTime, DefaultIdleTimeout)
	opts.SetConnectTimeout(c.ConnectTimeout)
	opts.SetServerSelectionTimeout(c.SelectionTimeout)
	if c.HeartbeatInterval > 0 {
		opts.SetHeartbeatInterval(c.HeartbeatInterval)
	}
	return opts, nil
}

func setInt(v *int, fromURI, def int) {
	if *v <= 0 {
		*v = fromURI
	}
	if *v <= 0 {
		*v = def
	}
}

func setDuration(v *time.Duration, fromURI *time.Duration, def time.Duration) {
	if *v <= 0 && fromURI != nil {
		*v = *fromURI
	}
	if *v <= 0 {
		*v = def
	}
}

// tlsFor returns the TLS configuration for a host, nil for plain connections.
func tlsFor(opts *options.ClientOptions, host string) *tls.Config {
	if opts.TLSConfig == nil {
		return nil
	}
	cfg := opts.TLSConfig.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	return cfg
}
