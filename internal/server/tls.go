// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// ErrNeedsTLS is wrapped by New's error if the address is not local and a TLS file is missing, or if only some are given.
var ErrNeedsTLS = errors.New("an address that is not local needs mutual TLS: " +
	"certificate, key and client CA together (--tls-cert, --tls-key, --client-ca)")

// tlsFiles names PEM files.
type tlsFiles struct{ cert, key, clientCA string }

func (f tlsFiles) none() bool {
	return f == tlsFiles{}
}

// serverConfig returns a configuration that reloads the files for each connection, so that certificates can be rotated without
// a restart. Files that can't be read are an error here; later they fail the connection.
func (f tlsFiles) serverConfig() (*tls.Config, error) {
	if f.cert == "" || f.key == "" || f.clientCA == "" {
		return nil, ErrNeedsTLS
	}
	config, err := f.load()
	if err != nil {
		return nil, err
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.load() }
	return config, nil
}

func (f tlsFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	ca, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, fmt.Errorf("read client CA: %w", err)
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read client CA: %s holds no PEM certificate", f.clientCA)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientCAs:    clients,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"h2"},
	}, nil
}
