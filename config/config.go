// Package config is what an operator can set: a struct nested by concern, read from a YAML file, from
// environment variables and from flags, in that order of growing weight. A key's path gives all
// three names: reshape.leaseRenew in the file is SHARDWAY_RESHAPE_LEASE_RENEW in the environment and
// --reshape-lease-renew on the command line. An unknown key in the file and an
// unknown SHARDWAY_ variable are errors that suggest the nearest name; configs/shardway.yaml shows every key with its default.
package config

import "time"

// Config is everything that can be set. Default gives the values that Load starts from; Validate
// says what may not be. The "key" tag is the name in the file, "help" what the operator reads.
type Config struct {
	Listen            string                `key:"listen" help:"Address to listen on, HOST:PORT. Port 0 takes a free one."`
	Catalog           string                `key:"catalog" help:"Where the catalog lives: a backend's id, or the connection string of a replica set. Empty: the first backend by id."`
	Backends          map[string]string     `key:"backends" help:"The fleet: an id for each replica set or standalone, and its connection string."`
	Collections       map[string]Collection `key:"collections" help:"Collections that are sharded at start, if they are not yet; each by namespace."`
	MaxPartitionBytes Bytes                 `key:"maxPartitionBytes" help:"A partition that grows beyond this is split. Suffixes KB, MB, GB, TB (powers of 1024)."`
	DrainTimeout      time.Duration         `key:"drainTimeout" help:"How long SIGTERM lets requests in flight go on before their connections are cut."`
	Log               Log                   `key:"log"`
	Admin             Admin                 `key:"admin"`
	TLS               TLS                   `key:"tls"`
	BackendTLS        BackendTLS            `key:"backendTLS"`
	Pool              Pool                  `key:"pool"`
	Transactions      Transactions          `key:"transactions"`
	Reshape           Reshape               `key:"reshape"`
}

// Collection declares a sharded collection.
type Collection struct {
	// Key is the shard key's field, a dotted path; it is hashed.
	Key string `yaml:"key"`
	// MaxPartitionBytes overrides the fleet's; 0 does not.
	MaxPartitionBytes Bytes `yaml:"maxPartitionBytes"`
	// Partitions is the number of partitions an empty collection begins with; 0: one a backend.
	Partitions int `yaml:"partitions"`
}

// Log is what is logged and how.
type Log struct {
	Level       string        `key:"level" help:"The least level that is logged: debug, info, warn, error."`
	Format      string        `key:"format" help:"json: a JSON object a line. text: for reading in a terminal."`
	SlowRequest time.Duration `key:"slowRequest" help:"Requests that take at least this long are logged; 0 logs none."`
}

// Admin is what operators ask over HTTP.
type Admin struct {
	Listen string `key:"listen" help:"Address for profiles over HTTP (/debug/pprof/), HOST:PORT. It asks for no password: loopback only. Empty: none."`
}

// TLS is for the clients' connections.
type TLS struct {
	CertFile          string `key:"certFile" help:"PEM file with the certificate shown to clients, chain included. Empty: no TLS."`
	KeyFile           string `key:"keyFile" help:"PEM file with that certificate's private key."`
	CAFile            string `key:"caFile" help:"PEM file with the authorities of clients' certificates. Empty: clients show none."`
	RequireClientCert bool   `key:"requireClientCert" help:"Refuse clients that show no certificate of those authorities."`
}

// BackendTLS is for the connections to the backends; a connection string's own tls options hold too.
type BackendTLS struct {
	CAFile      string `key:"caFile" help:"PEM file with the authorities of the backends' certificates. Empty: the connection strings' or the system's."`
	CertKeyFile string `key:"certKeyFile" help:"PEM file with the certificate and private key shown to backends. Empty: the connection strings'."`
}

// Pool is the connections to one host of a backend.
type Pool struct {
	MaxConns          int           `key:"maxConns" help:"Most connections to one host. Each costs the server memory and a thread."`
	MaxWaiters        int           `key:"maxWaiters" help:"Most requests that wait for a connection to one host; one more fails at once with a retryable error."`
	SelectionTimeout  time.Duration `key:"selectionTimeout" help:"How long a request waits for a usable server, or for this proxy to be registered at the backend again: drivers' own default, which outlasts a failover."`
	ConnectTimeout    time.Duration `key:"connectTimeout" help:"Limit for dialling, TLS and authentication of one connection."`
	IdleTimeout       time.Duration `key:"idleTimeout" help:"A connection unused for this long is closed."`
	HeartbeatInterval time.Duration `key:"heartbeatInterval" help:"How often a server is asked for its state."`
}

// Transactions is about transactions of several statements.
type Transactions struct {
	Lifetime time.Duration `key:"lifetime" help:"A transaction open for this long is aborted, as transactionLifetimeLimitSeconds does on a server. The backends' own limits hold too."`
}

// Reshape is the durations and limits of splits, moves and merges. All proxies of a fleet must agree
// on leaseMargin and retryWindow.
type Reshape struct {
	Lease              time.Duration `key:"lease" help:"How long a proxy may use a backend without renewing. It must outlast a failover of the backend, or requests wait for a new registration. A dead proxy delays a flip by this and leaseMargin. 0: 30s, and as much longer or shorter as the backend's electionTimeoutMillis differs from 10s."`
	LeaseRenew         time.Duration `key:"leaseRenew" help:"How often leases are renewed."`
	LeaseMargin        time.Duration `key:"leaseMargin" help:"How far two clocks may differ in measuring one lease."`
	BurnAfter          time.Duration `key:"burnAfter" help:"An attempt to flip that has held the gates this long is given up for now."`
	BackoffMin         time.Duration `key:"backoffMin" help:"The wait before the next attempt; it doubles each time, up to a minute."`
	GateWait           time.Duration `key:"gateWait" help:"How long requests wait at a closed gate before this proxy ends the closing itself: its owner may be dead."`
	RetryWindow        time.Duration `key:"retryWindow" help:"How long after a flip a repeated write is still recognised; at least the servers' session timeout."`
	DrainLimit         time.Duration `key:"drainLimit" help:"Cursors older than a flip by this much are killed, so that the old partition can be dropped."`
	CheckInterval      time.Duration `key:"checkInterval" help:"How often partitions' sizes are looked at."`
	StandalonePause    time.Duration `key:"standalonePause" help:"On a standalone a reshape stops writes while it copies, and so does movePrimary of a capped or time-series collection; one that would take longer than this is refused."`
	SweepInterval      time.Duration `key:"sweepInterval" help:"How often backends are looked through for what changes that are over have left there, and for collections that belong to nothing."`
	CopyBytesPerSecond Bytes         `key:"copyBytesPerSecond" help:"Most bytes that this proxy's copies write in a second, all together; 0: as many as leave the foreground its latency."`
}

// Default is what holds for every key that is not set.
func Default() Config {
	return Config{
		Listen:            "127.0.0.1:27017",
		MaxPartitionBytes: 50 << 30,
		DrainTimeout:      10 * time.Second,
		Log:               Log{Level: "info", Format: "json", SlowRequest: 100 * time.Millisecond},
		Pool: Pool{
			MaxConns:          256,
			MaxWaiters:        10_000,
			SelectionTimeout:  30 * time.Second,
			ConnectTimeout:    10 * time.Second,
			IdleTimeout:       5 * time.Minute,
			HeartbeatInterval: 10 * time.Second,
		},
		Transactions: Transactions{Lifetime: time.Minute},
		Reshape: Reshape{
			LeaseRenew:      2 * time.Second,
			LeaseMargin:     time.Second,
			BurnAfter:       time.Second,
			BackoffMin:      time.Second,
			GateWait:        5 * time.Second,
			RetryWindow:     30 * time.Minute,
			DrainLimit:      time.Hour,
			CheckInterval:   10 * time.Second,
			StandalonePause: 10 * time.Second,
			SweepInterval:   time.Hour,
		},
	}
}
