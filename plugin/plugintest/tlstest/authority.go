// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tlstest issues certificates to tests.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const (
	// validity covers every test run.
	validity = 30 * 24 * time.Hour
	// clockSkew lets a certificate be valid on a clock that is slow.
	clockSkew = 24 * time.Hour
)

// Authority is a certificate authority.
type Authority struct {
	// PEM is its certificate.
	PEM []byte

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority returns an authority of its own.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate CA key: %w", err)
	}
	template := newTemplate(pkix.Name{CommonName: "lockstep-test"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create CA certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	return &Authority{PEM: encode("CERTIFICATE", der), certificate: certificate, key: key}, nil
}

// Pool returns a pool that trusts the authority and nothing else.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Issue returns a certificate that serves on loopback and also identifies a client: user is the user name and groups are
// the groups that a Kubernetes API server sees.
func (a *Authority) Issue(user string, groups ...string) (Pair, error) {
	return a.issue(pkix.Name{CommonName: user, Organization: groups})
}

// Serve returns a certificate that serves on loopback and for these other names and addresses, too.
func (a *Authority) Serve(user string, others ...string) (Pair, error) {
	return a.issue(pkix.Name{CommonName: user}, others...)
}

func (a *Authority) issue(subject pkix.Name, others ...string) (Pair, error) {
	user := subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate key of %s: %w", user, err)
	}
	template := newTemplate(subject)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, other := range others {
		if ip := net.ParseIP(other); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, other)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("create certificate of %s: %w", user, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode key of %s: %w", user, err)
	}
	return Pair{Certificate: encode("CERTIFICATE", der), Key: encode("EC PRIVATE KEY", keyDER)}, nil
}

func newTemplate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: subject,
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(validity),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
}

// Pair is a certificate and its private key, both PEM.
type Pair struct {
	Certificate, Key []byte
}

// Write stores the pair in dir, as name.crt and name.key.
func (p Pair) Write(dir, name string) (Files, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Files{}, err
	}
	f := Files{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	if err := os.WriteFile(f.Cert, p.Certificate, 0o600); err != nil {
		return Files{}, err
	}
	return f, os.WriteFile(f.Key, p.Key, 0o600)
}

// Files are the files of a certificate and its private key.
type Files struct {
	Cert, Key string
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

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
