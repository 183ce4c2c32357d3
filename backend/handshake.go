package backend

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/auth"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/ocsp"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// handshaker runs the driver's hello and authentication over connections of ours.
type handshaker struct {
	opts  auth.HandshakeOptions
	cache ocsp.Cache
}

func newHandshaker(opts *options.ClientOptions) (*handshaker, error) {
	h := &handshaker{cache: ocsp.NewCache()}
	h.opts.OuterLibraryName = "shardway"
	if opts.AppName != nil {
		h.opts.AppName = *opts.AppName
	}
	if opts.Auth == nil {
		return h, nil
	}
	a, err := auth.CreateAuthenticator(opts.Auth.AuthMechanism, topology.ConvertCreds(opts.Auth), opts.HTTPClient)
	if err != nil {
		return nil, fmt.Errorf("its credentials: %w", err)
	}
	h.opts.Authenticator = a
	if opts.Auth.AuthMechanism == "" {
		h.opts.DBUser = opts.Auth.AuthSource + "." + opts.Auth.Username // asks which mechanisms the user has
	}
	return h, nil
}

// run greets and authenticates, within ctx's deadline.
func (h *handshaker) run(ctx context.Context, c *conn) error {
	opts := h.opts // a handshaker of the driver's has state and serves one connection
	hs := auth.Handshaker(nil, &opts)
	m := mnet.NewConnection(handshakeConn{c})
	info, err := hs.GetHandshakeInformation(ctx, c.pool.addr, m)
	if err != nil {
		return err
	}
	c.desc = info.Description
	if err := hs.FinishHandshake(ctx, m); err != nil {
		return err
	}
	return c.arm(time.Time{})
}

// secure does the TLS handshake where the connection string asks for TLS, as the driver does.
func (b *Backend) secure(ctx context.Context, nc net.Conn, addr address.Address) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		host = addr.String()
	}
	cfg := tlsFor(b.opts, host)
	if cfg == nil {
		return nc, nil
	}
	tc := tls.Client(nc, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	if !cfg.InsecureSkipVerify && !isTrue(b.opts.DisableCertificateRevocationCheck) {
		err := ocsp.Verify(ctx, tc.ConnectionState(), &ocsp.VerifyOptions{
			Cache:                   b.handshake.cache,
			DisableEndpointChecking: isTrue(b.opts.DisableOCSPEndpointCheck),
			HTTPClient:              b.opts.HTTPClient,
		})
		if err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
	}
	return tc, nil
}

func isTrue(v *bool) bool { return v != nil && *v }

// handshakeConn lets the driver's handshake read and write whole messages on a connection.
type handshakeConn struct{ *conn }

var _ mnet.ReadWriteCloser = handshakeConn{}

// maxHandshakeReply bounds a reply before the peer is known to be a server at all.
const maxHandshakeReply = 1 << 20

// Write sends one message.
func (h handshakeConn) Write(ctx context.Context, wm []byte) error {
	stop, err := h.bound(ctx)
	if err != nil {
		return err
	}
	defer stop()
	_, err = h.nc.Write(wm)
	return asDriverError(err)
}

// Read reads one message.
func (h handshakeConn) Read(ctx context.Context) ([]byte, error) {
	stop, err := h.bound(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	var head [4]byte
	if _, err := io.ReadFull(h.nc, head[:]); err != nil {
		return nil, asDriverError(err)
	}
	size := int64(int32(binary.LittleEndian.Uint32(head[:])))
	if size < 16 || size > maxHandshakeReply {
		return nil, asDriverError(fmt.Errorf("%w: a message length of %d", errGarbage, size))
	}
	wm := make([]byte, size)
	copy(wm, head[:])
	if _, err := io.ReadFull(h.nc, wm[4:]); err != nil {
		return nil, asDriverError(err)
	}
	return wm, nil
}

// Close is left to the dialler.
func (h handshakeConn) Close() error { return nil }

// bound has ctx's deadline and end stop the next read or write.
func (h handshakeConn) bound(ctx context.Context) (func() bool, error) {
	d, _ := ctx.Deadline()
	if err := h.arm(d); err != nil {
		return nil, err
	}
	return context.AfterFunc(ctx, h.cut), nil
}

// asDriverError gives a socket's error the form the driver expects of connections.
func asDriverError(err error) error {
	if err == nil {
		return nil
	}
	return driver.Error{Message: err.Error(), Labels: []string{driver.NetworkError}, Wrapped: err}
}
