// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
)

// keepaliveTime bounds how long a lost peer goes unnoticed. It is well above the least that `lockstep serve` allows; gRPC
// doubles it for a server that allows fewer pings.
const keepaliveTime = 30 * time.Second

// ErrNeedsTLS is wrapped by Dial's error for an address that is not local and has no TLS with a client certificate or a token,
// and for a token without TLS.
var ErrNeedsTLS = errors.New(
	"needs TLS: an address that is not local a CA for the server and a client certificate or a token, a token a CA for the server")

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
	dial := append([]grpc.DialOption{
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
	return c, nil
}

// transport returns the credentials for the endpoint, or ErrNeedsTLS.
func (o *options) transport(e endpoint.Endpoint) (credentials.TransportCredentials, error) {
	config := o.tls
	var files *endpoint.Files[*tls.Config]
	if f := o.tlsFiles; f != nil {
		var err error
		if files, err = endpoint.NewFiles(f.load, f.cert, f.key, f.ca); err != nil {
			return nil, err
		}
		config = files.Get()
	}
	token := o.tokenFile != ""
	identified := token || presents(config)
	if !verifies(config) && (token || !e.Local()) || !identified && !e.Local() {
		return nil, ErrNeedsTLS
	}
	if config == nil {
		return insecure.NewCredentials(), nil
	}
	if files != nil {
		return fileCredentials{credentials.NewTLS(o.named(config)), func() *tls.Config { return o.named(files.Get()) }}, nil
	}
	return credentials.NewTLS(o.named(config)), nil
}

// named returns the configuration with the name that the server must have.
func (o *options) named(config *tls.Config) *tls.Config {
	if o.serverName != "" {
		config = config.Clone()
		config.ServerName = o.serverName
	}
	return config
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

// presents reports whether a client under config has a certificate.
func presents(config *tls.Config) bool {
	return config != nil && (len(config.Certificates) > 0 || config.GetClientCertificate != nil)
}

// verifies reports whether a client under config verifies the server.
func verifies(config *tls.Config) bool {
	return config != nil && (!config.InsecureSkipVerify || config.VerifyConnection != nil)
}

// tlsFiles names PEM files.
type tlsFiles struct{ cert, key, ca string }

func (f *tlsFiles) load() (*tls.Config, error) {
	ca, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read CA: %s holds no PEM certificate", f.ca)
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
