// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"log/slog"
	"time"

	"google.golang.org/grpc"
)

// Default times of Launch and Dial.
const (
	defaultStartTimeout   = 30 * time.Second
	defaultConnectTimeout = 10 * time.Second
)

// Option changes Launch or Dial. Each ignores the options that are only for the other.
type Option func(*options)

type options struct {
	logger         *slog.Logger
	connectTimeout time.Duration
	dial           []grpc.DialOption

	// Launch.
	sha256       string
	args         []string
	env          []string
	startTimeout time.Duration

	// Dial.
	tlsFiles     *tlsFiles
	tokenFile    string
	serverName   string
	waitForReady bool
	unnamed      bool
}

func newOptions(opts []Option) options {
	o := options{
		logger:         slog.New(slog.DiscardHandler),
		connectTimeout: defaultConnectTimeout,
		startTimeout:   defaultStartTimeout,
	}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithLogger sets the logger for the connection and, with Launch, for the plugin's log. Default: none.
func WithLogger(logger *slog.Logger) Option {
	return func(o *options) { o.logger = logger }
}

// WithConnectTimeout bounds the first call to the driver. Default: 10 seconds.
func WithConnectTimeout(d time.Duration) Option {
	return func(o *options) { o.connectTimeout = d }
}

// WithDialOptions adds gRPC dial options, for example interceptors.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, opts...) }
}

// WithSHA256 makes Launch refuse a binary whose SHA-256, in hex, is another.
func WithSHA256(sum string) Option {
	return func(o *options) { o.sha256 = sum }
}

// WithArgs sets the plugin's arguments.
func WithArgs(args ...string) Option {
	return func(o *options) { o.args = args }
}

// WithEnv adds "KEY=value" pairs to the environment that the plugin inherits from this process. The last value of a key
// wins.
func WithEnv(env ...string) Option {
	return func(o *options) { o.env = append(o.env, env...) }
}

// WithStartTimeout bounds the time from starting the binary to its handshake. Default: 30 seconds.
func WithStartTimeout(d time.Duration) Option {
	return func(o *options) { o.startTimeout = d }
}

// WithTLS sets the client certificate, its key, and the CA that the server's certificate must come from: PEM files.
func WithTLS(certFile, keyFile, caFile string) Option {
	return func(o *options) { o.tlsFiles = &tlsFiles{cert: certFile, key: keyFile, ca: caFile} }
}

// WithCA sets the CA that the server's certificate must come from: a PEM file. The client has no certificate, but for example a
// token.
func WithCA(caFile string) Option {
	return func(o *options) { o.tlsFiles = &tlsFiles{ca: caFile} }
}

// WithServerName sets the name that the server's certificate must have. Default: the host of the address.
func WithServerName(name string) Option {
	return func(o *options) { o.serverName = name }
}

// WithTokenFile sends the bearer token in a file with each call, over TLS only. The file is read again when it changes, as
// Kubernetes does with the tokens of pods.
func WithTokenFile(path string) Option {
	return func(o *options) { o.tokenFile = path }
}

// WithoutName returns the messages of the driver's errors without its name, to users who know only one driver.
func WithoutName() Option {
	return func(o *options) { o.unnamed = true }
}

// WithWaitForReady makes Dial wait, within the connect timeout, for a server that does not listen yet. By default that is
// an error at once.
func WithWaitForReady() Option {
	return func(o *options) { o.waitForReady = true }
}
