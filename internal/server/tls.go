// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
)

// ErrNeedsTLS is wrapped by New's error if a TLS file that the address needs is missing.
var ErrNeedsTLS = errors.New("a TCP address needs TLS: certificate and key together (--tls-cert, --tls-key)")

// ErrNeedsReviewer is wrapped by New's error for a TCP address without Reviewer and without AlwaysAllow.
var ErrNeedsReviewer = errors.New("a TCP address needs a reviewer of callers, or AlwaysAllow")

// tlsFiles names PEM files.
type tlsFiles struct {
	cert, key, clientCA string
	// tokens: a caller may have a token instead of a certificate.
	tokens bool
}

func (f tlsFiles) none() bool { return f.cert+f.key+f.clientCA == "" }

// serverConfig returns a configuration that reads changed files again, so that certificates can be rotated without a restart. Files
// that can't be read are an error here; later the last ones stay.
func (f tlsFiles) serverConfig() (*tls.Config, error) {
	if f.cert == "" || f.key == "" {
		return nil, ErrNeedsTLS
	}
	paths := []string{f.cert, f.key}
	if f.clientCA != "" {
		paths = append(paths, f.clientCA)
	}
	files, err := endpoint.NewFiles(f.load, paths...)
	if err != nil {
		return nil, err
	}
	config := files.Get().Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.Get(), nil }
	return config, nil
}

func (f tlsFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	if f.clientCA == "" {
		return config, nil
	}
	ca, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, fmt.Errorf("read client CA: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read client CA: %s holds no PEM certificate", f.clientCA)
	}
	if config.ClientAuth = tls.RequireAndVerifyClientCert; f.tokens {
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, nil
}
