// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package tlstest

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
)

// CA is the authority of one test, with files in its temporary folder.
type CA struct {
	*Authority

	// File has the certificate of the authority.
	File string

	dir string
}

// NewCA returns an authority for the test.
func NewCA(t testing.TB) *CA {
	t.Helper()
	a, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(file, a.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	return &CA{Authority: a, File: file, dir: dir}
}

// Files issues a certificate as files. A second one of the same name replaces them.
func (c *CA) Files(t testing.TB, name string) Files {
	t.Helper()
	pair, err := c.Issue(name)
	if err != nil {
		t.Fatal(err)
	}
	files, err := pair.Write(c.dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// ServerConfig is that of a server that demands a certificate of the authority from its clients.
func (c *CA) ServerConfig(t testing.TB) *tls.Config {
	t.Helper()
	pair, err := c.Issue("server")
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: c.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
}

// ClientConfig is that of a client that trusts the authority and presents no certificate.
func (c *CA) ClientConfig() *tls.Config {
	return &tls.Config{RootCAs: c.Pool(), MinVersion: tls.VersionTLS13}
}
