package backend_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardway/shardway/backend"
	"github.com/shardway/shardway/backend/backendtest"
)

// certificate makes a self-signed one for the loopback and the file in which a connection string names it.
func certificate(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// TestTLS: the connection string's TLS settings hold for our own connections: its CA is trusted, no other is.
func TestTLS(t *testing.T) {
	cert, file := certificate(t)
	_, otherFile := certificate(t)
	s := backendtest.NewTLS(t, &tls.Config{Certificates: []tls.Certificate{cert}})
	ping := bson.D{{Key: "ping", Value: 1}}

	trusting := open(t, backend.Config{URI: s.URI() + "?tls=true&tlsCAFile=" + url.QueryEscape(file)})
	for range 3 {
		if _, err := trusting.Run(within(t), "d", ping); err != nil {
			t.Fatal(err)
		}
	}
	if st := trusting.Stats(); st.Created != 1 {
		t.Errorf("three commands made %d connections", st.Created)
	}
	s.Cut()
	eventually(t, func() bool { _, err := trusting.Run(short(t, 5*time.Second), "d", ping); return err == nil })

	before := len(s.Received())
	strange := open(t, backend.Config{URI: s.URI() + "?tls=true&tlsCAFile=" + url.QueryEscape(otherFile), SelectionTimeout: 300 * time.Millisecond})
	if _, err := strange.Run(within(t), "d", ping); err == nil {
		t.Error("a certificate of another authority was trusted")
	}
	if after := len(s.Received()); after != before {
		t.Error("a command reached a server that is not trusted")
	}
}
