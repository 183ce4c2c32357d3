package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shardway/shardway/fleet/fleettest"
)

// keyPair makes a self-signed certificate for the loopback, and the files of it and of its key.
func keyPair(t *testing.T) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", private)
}

func trusting(t *testing.T, certFile string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(certFile)
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	return &tls.Config{RootCAs: pool}
}

// TestServeTLS: clients speak TLS, must trust the proxy's certificate, and show one of their own where that is required.
func TestServeTLS(t *testing.T) {
	f := fleettest.Start(t, 1)
	_, certFile, keyFile := keyPair(t)
	client, clientFile, _ := keyPair(t)
	_, strangeFile, _ := keyPair(t)
	p := start(t, append(append([]string{"serve"}, backendArgs(f.Servers...)...),
		"--tls-cert-file", certFile, "--tls-key-file", keyFile, "--tls-ca-file", clientFile, "--tls-require-client-cert")...)
	uri := "mongodb://" + p.logged(t, "listening")["address"].(string) + "/"
	ping := func(config *tls.Config) error {
		o := options.Client().ApplyURI(uri).SetServerSelectionTimeout(2 * time.Second)
		if config != nil {
			o.SetTLSConfig(config)
		}
		c, err := mongo.Connect(o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Disconnect(context.Background()) }()
		return c.Ping(t.Context(), nil)
	}
	known := trusting(t, certFile)
	known.Certificates = []tls.Certificate{client}
	if err := ping(known); err != nil {
		t.Errorf("with all certificates right: %v", err)
	}
	strange := trusting(t, strangeFile)
	strange.Certificates = known.Certificates
	for what, config := range map[string]*tls.Config{
		"without TLS":                         nil,
		"without a certificate":               trusting(t, certFile),
		"that does not trust the proxy's":     strange,
		"with a certificate of somebody else": {RootCAs: known.RootCAs, Certificates: []tls.Certificate{func() tls.Certificate { c, _, _ := keyPair(t); return c }()}},
	} {
		if ping(config) == nil {
			t.Errorf("a client %s was served", what)
		}
	}
	if err := ping(known); err != nil {
		t.Errorf("after those that were refused: %v", err)
	}
	p.terminate(t)
}
