package main

import (
	"testing"

	"github.com/shardway/shardway/config"
)

func TestWithTLS(t *testing.T) {
	both := config.BackendTLS{CAFile: "/ca.pem", CertKeyFile: "/me.pem"}
	cases := []struct {
		uri  string
		tls  config.BackendTLS
		want string
	}{
		{"mongodb://h", config.BackendTLS{}, "mongodb://h"},
		{"mongodb://h", both, "mongodb://h/?tls=true&tlsCAFile=%2Fca.pem&tlsCertificateKeyFile=%2Fme.pem"},
		{"mongodb://h/?replicaSet=r", config.BackendTLS{CAFile: "/ca.pem"}, "mongodb://h/?replicaSet=r&tls=true&tlsCAFile=%2Fca.pem"},
		{"mongodb://h/?ssl=false", config.BackendTLS{CAFile: "/ca.pem"}, "mongodb://h/?ssl=false&tlsCAFile=%2Fca.pem"},
		{"mongodb://h/?tlscafile=own", config.BackendTLS{CAFile: "/ca.pem"}, "mongodb://h/?tls=true&tlscafile=own"},
	}
	for _, c := range cases {
		if got, err := withTLS(c.uri, c.tls); err != nil || got != c.want {
			t.Errorf("withTLS(%q) = %q, %v, want %q", c.uri, got, err, c.want)
		}
	}
}

func TestCatalogBackend(t *testing.T) {
	backends := map[string]string{"b": "mongodb://h1:1,h2:2/?replicaSet=x", "a": "mongodb://h3/"}
	for catalog, want := range map[string]string{
		"": "a", "b": "b", "mongodb://h2:2/?replicaSet=x": "b", "mongodb://h3/": "a", "mongodb://h4/": "",
	} {
		got, err := catalogBackend(config.Config{Catalog: catalog, Backends: backends})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("catalog %q is on %q, %v, want %q", catalog, got, err, want)
		}
	}
}
