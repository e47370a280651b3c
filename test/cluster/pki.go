package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority is the certificate authority of one cluster. Everything that listens serves a certificate of it and every
// client trusts nothing else, so a client cannot talk to another cluster that got hold of a port.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// keyPair is a certificate and its private key, both PEM.
type keyPair struct {
	certificate, key []byte
}

const (
	// validity covers every test run.
	validity = 30 * 24 * time.Hour
	// clockSkew lets a certificate be valid on a clock that is slow.
	clockSkew = time.Hour
)

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate CA key: %w", err)
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "lockstep-test-cluster", NotBefore: time.Now().Add(-clockSkew)}, key)
	if err != nil {
		return nil, fmt.Errorf("create CA certificate: %w", err)
	}
	return &authority{certificate: certificate, key: key, pem: encodeCertificate(certificate.Raw)}, nil
}

// issue makes a certificate that serves on 127.0.0.1 and also identifies a client: user is the user name and groups are the
// groups that the API server sees.
func (a *authority) issue(user string, groups ...string) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("generate key of %s: %w", user, err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:     []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("create certificate of %s: %w", user, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return keyPair{}, fmt.Errorf("encode key of %s: %w", user, err)
	}
	return keyPair{certificate: encodeCertificate(der), key: keyPEM}, nil
}

// write stores the pair as tls.crt and tls.key in dir, the names webhook servers expect.
func (p keyPair) write(dir string) error {
	if err := keyutil.WriteKey(filepath.Join(dir, "tls.key"), p.key); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return cert.WriteCert(filepath.Join(dir, "tls.crt"), p.certificate)
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}
