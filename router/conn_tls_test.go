package router

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/shardway/shardway/partition"
)

// A client that begins a TLS handshake and does not go on with it is not waited for without end.
func TestStalledHandshakeEnds(t *testing.T) {
	for what, sent := range map[string]string{"nothing": "", "a part": "\x16\x03\x01\x02\x00\x01"} {
		synctest.Test(t, func(t *testing.T) {
			r := New(Config{Table: partition.NewTable(), Log: zerolog.Nop()})
			defer r.Shutdown(context.Background())
			client, server := net.Pipe()
			began := time.Now()
			r.start(context.Background(), tls.Server(server, &tls.Config{MinVersion: tls.VersionTLS12}))
			if _, err := io.WriteString(client, sent); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(client); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < handshakeTimeout || took > handshakeTimeout+time.Minute {
				t.Errorf("%s sent: ended after %s", what, took)
			}
		})
	}
}
