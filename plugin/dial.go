// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
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

// DialOptions say how to reach a driver.
type DialOptions struct {
	// CA, Cert and Key are PEM files: what the server's certificate must come from, and the client's certificate, which a client with a token
	// need not have. They are read again when they change.
	CA, Cert, Key string
	// ServerName is the name that the server's certificate must have. Empty means the host of the address.
	ServerName string
	// TokenFile has a bearer token that is sent with each call, over TLS only. It is read again when it changes, as those of pods do.
	TokenFile string
	// ConnectTimeout bounds the first call to the driver. 0 means 10 seconds.
	ConnectTimeout time.Duration
	// WaitForReady has Dial wait so long for a server that does not listen yet. Otherwise that is an error at once.
	WaitForReady bool
	// WithoutName leaves the driver's name out of the messages of errors, for users who know only one driver.
	WithoutName bool
	// GRPC are further options, for example interceptors.
	GRPC []grpc.DialOption
}

// defaultConnectTimeout bounds the first call to a driver.
const defaultConnectTimeout = 10 * time.Second

// Dial connects to a driver that runs as a server, at "unix:///path", "host:port" or "dns:///host:port". Anything but
// a unix socket and loopback needs TLS, with a client certificate or a token. The connection reconnects by itself; ctx bounds the
// first connect only.
func Dial(ctx context.Context, address string, o DialOptions) (*Client, error) {
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
	}, o.GRPC...)
	if o.TokenFile != "" {
		token, err := newTokenFile(o.TokenFile)
		if err != nil { // fail now rather than at the first call
			return nil, fmt.Errorf("dial driver at %s: %w", e, err)
		}
		dial = append(dial, grpc.WithPerRPCCredentials(token))
	}
	conn, err := grpc.NewClient(e.Target(), dial...)
	if err != nil {
		return nil, fmt.Errorf("dial driver at %s: %w", e, err)
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.ConnectTimeout, defaultConnectTimeout))
	defer cancel()
	c, err := newClient(ctx, conn, e.String(), conn.Close, grpc.WaitForReady(o.WaitForReady))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if o.WithoutName {
		p, _ := c.peer()
		p.name = ""
		return clientOf(func() (peer, error) { return p, nil }, conn.Close), nil
	}
	return c, nil
}

// transport returns the credentials for the endpoint, or ErrNeedsTLS.
func (o *DialOptions) transport(e endpoint.Endpoint) (credentials.TransportCredentials, error) {
	secure, token := o.CA+o.Cert+o.Key != "", o.TokenFile != ""
	switch identified := token || o.Cert != ""; {
	case !secure && token, !e.Local() && (!secure || !identified):
		return nil, ErrNeedsTLS
	case !secure:
		return insecure.NewCredentials(), nil
	}
	files, err := endpoint.NewFiles(o.load, o.Cert, o.Key, o.CA)
	if err != nil {
		return nil, err
	}
	config := func() *tls.Config {
		config := files.Get().Clone()
		config.ServerName = o.ServerName
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

// load reads the PEM files.
func (o *DialOptions) load() (*tls.Config, error) {
	roots, err := endpoint.ReadCA(o.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	if o.Cert == "" && o.Key == "" {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
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
