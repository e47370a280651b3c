// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
)

// keepaliveTime bounds how long a lost peer goes unnoticed. It is well above the least that `lockstep serve` allows; gRPC
// doubles it for a server that allows fewer pings.
const keepaliveTime = 30 * time.Second

// longestRedial is the longest pause between two attempts to reconnect. gRPC's own limit is two minutes, too long for a driver that restarts while an
// abort waits. attemptTimeout bounds one attempt.
const longestRedial, attemptTimeout = 5 * time.Second, 20 * time.Second

// ErrNeedsTLS is wrapped by Dial's error for an address that is not local and has no TLS with a client certificate or a token,
// and for a token without TLS.
var ErrNeedsTLS = errors.New(
	"needs TLS: a CA for the server's certificate, and a client certificate or a token")

// Dial connects to a driver that runs as a server, at "unix:///path", "host:port" or "dns:///host:port". Anything but
// a unix socket and loopback needs TLS, with a client certificate or a token. The connection reconnects by itself; ctx bounds the
// first connect only.
func Dial(ctx context.Context, address string, opts ...Option) (*Client, error) {
	o := newOptions(opts)
	e, err := endpoint.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("dial driver: %w", err)
	}
	transport, err := o.transport(e)
	if err != nil {
		return nil, fmt.Errorf("dial driver at %s: %w", e, err)
	}
	redial := backoff.DefaultConfig
	redial.MaxDelay = longestRedial
	dial := append([]grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: attemptTimeout}),
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime}),
	}, o.dial...)
	if o.tokenFile != "" {
		token, err := newTokenFile(o.tokenFile)
		if err != nil { // fail now rather than at the first call
			return nil, fmt.Errorf("dial driver at %s: %w", e, err)
		}
		dial = append(dial, grpc.WithPerRPCCredentials(token))
	}
	conn, err := grpc.NewClient(e.Target(), dial...)
	if err != nil {
		return nil, fmt.Errorf("dial driver at %s: %w", e, err)
	}
	ctx, cancel := context.WithTimeout(ctx, o.connectTimeout)
	defer cancel()
	c, err := newClient(ctx, conn, e.String(), conn.Close, grpc.WaitForReady(o.waitForReady))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if o.unnamed {
		p, _ := c.peer()
		p.name = ""
		return clientOf(func() (peer, error) { return p, nil }, conn.Close), nil
	}
	return c, nil
}

// transport returns the credentials for the endpoint, or ErrNeedsTLS.
func (o *options) transport(e endpoint.Endpoint) (credentials.TransportCredentials, error) {
	f, token := o.tlsFiles, o.tokenFile != ""
	switch identified := token || f != nil && f.cert != ""; {
	case f == nil && token, !e.Local() && (f == nil || !identified):
		return nil, ErrNeedsTLS
	case f == nil:
		return insecure.NewCredentials(), nil
	}
	files, err := endpoint.NewFiles(f.load, f.cert, f.key, f.ca)
	if err != nil {
		return nil, err
	}
	config := func() *tls.Config {
		config := files.Get().Clone()
		config.ServerName = o.serverName
		return config
	}
	return fileCredentials{credentials.NewTLS(config()), config}, nil
}

// fileCredentials take certificates and CA for each connection from files, which are renewed while hosts run.
type fileCredentials struct {
	credentials.TransportCredentials

	config func() *tls.Config
}

// ClientHandshake implements credentials.TransportCredentials.
func (c fileCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.config()).ClientHandshake(ctx, authority, conn) //nolint:wrapcheck // its own
}

// Clone implements credentials.TransportCredentials.
func (c fileCredentials) Clone() credentials.TransportCredentials {
	return fileCredentials{c.TransportCredentials.Clone(), c.config}
}

// tlsFiles names PEM files.
type tlsFiles struct{ cert, key, ca string }

func (f *tlsFiles) load() (*tls.Config, error) {
	roots, err := endpoint.ReadCA(f.ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	if f.cert == "" && f.key == "" {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("load client certificate: %w", err)
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return config, nil
}

// tokenFile is a file with a bearer token, as gRPC credentials.
type tokenFile struct{ *endpoint.Files[string] }

func newTokenFile(path string) (tokenFile, error) {
	files, err := endpoint.NewFiles(func() (string, error) {
		raw, err := os.ReadFile(path)
		token := strings.TrimSpace(string(raw))
		// A file that is being written may be empty. The last token stays in use then.
		if err == nil && token == "" {
			err = fmt.Errorf("%s is empty", path)
		}
		return token, err
	}, path)
	if err != nil {
		return tokenFile{}, fmt.Errorf("read token: %w", err)
	}
	return tokenFile{files}, nil
}

// RequireTransportSecurity keeps gRPC from sending the token in plaintext.
func (tokenFile) RequireTransportSecurity() bool { return true }

// GetRequestMetadata returns the token for a call.
func (f tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + f.Get()}, nil
}
