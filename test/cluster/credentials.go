// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
)

// masters is the group with all permissions.
const masters = "system:masters"

// users are the identities of components and of this package; their names appear in the audit log and in managedFields. The
// controllers may do as much as with their own service accounts and roles.
var users = map[string]string{
	"admin":           "lockstep-test-admin",
	ControllerManager: "system:kube-controller-manager",
	Scheduler:         "system:kube-scheduler",
	LWS:               "system:serviceaccount:lws-system:lws-controller-manager",
	KWOK:              "system:serviceaccount:kube-system:kwok-controller",
	Traefik:           "system:serviceaccount:traefik:traefik",
	"kubelet":         "lockstep-test-kubelet",
	KubeProxy:         "system:kube-proxy",
	Kueue:             "system:serviceaccount:kueue-system:kueue-controller-manager",
	DNS:               "system:serviceaccount:kube-system:coredns",
}

// writeCredentials writes the certificates and keys of the programs, and a kubeconfig per identity.
func (c *Cluster) writeCredentials() error {
	if err := os.WriteFile(c.path("ca.crt"), c.ca.PEM, 0o600); err != nil {
		return fmt.Errorf("write CA certificate: %w", err)
	}
	serving, err := c.ca.Serve("localhost", controlPlaneAddress.String(), kubernetesService, "kubernetes.default.svc")
	if err != nil {
		return err
	}
	if _, err := serving.Write(c.path("serving"), "tls"); err != nil {
		return fmt.Errorf("write serving certificate: %w", err)
	}
	if err := writeServiceAccountKey(c.path("service-account.key")); err != nil {
		return err
	}
	for name, user := range users {
		pair, err := c.ca.Issue(user, masters)
		if err != nil {
			return err
		}
		if err := WriteKubeconfig(c.clientConfig(pair), c.path(name+".kubeconfig")); err != nil {
			return err
		}
	}
	return nil
}

// writeServiceAccountKey writes the key that signs and verifies service account tokens.
func writeServiceAccountKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("generate service account key: %w", err)
	}
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encode service account key: %w", err)
	}
	return keyutil.WriteKey(path, content)
}

// clientConfig returns the client configuration of a key pair. It trusts this cluster only.
func (c *Cluster) clientConfig(pair tlstest.Pair) *rest.Config {
	return &rest.Config{
		Host:  "https://" + address(c.port.apiServer),
		QPS:   1000,
		Burst: 2000,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: c.ca.PEM, CertData: pair.Certificate, KeyData: pair.Key,
		},
	}
}

// WriteKubeconfig writes cfg as a self-contained kubeconfig with one context.
func WriteKubeconfig(cfg *rest.Config, path string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["lockstep"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken,
	}
	config.Contexts["lockstep"] = &clientcmdapi.Context{Cluster: "lockstep", AuthInfo: "user"}
	config.CurrentContext = "lockstep"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	return nil
}

// probe checks a component's health endpoint, over TLS that only a component of this cluster can complete.
func (c *Cluster) probe(ctx context.Context, url string) error {
	return c.request(ctx, http.MethodGet, url, nil)
}

// request sends a request with the client certificate of the control plane, and returns an error unless it is answered with 200.
func (c *Cluster) request(ctx context.Context, method, url string, body io.Reader) error {
	pair, err := tls.LoadX509KeyPair(c.path("serving", "tls.crt"), c.path("serving", "tls.key"))
	if err != nil {
		return err
	}
	return send(ctx, method, url, body, &tls.Config{RootCAs: c.ca.Pool(), Certificates: []tls.Certificate{pair}}, http.StatusOK)
}

// answers returns nil if a GET has a status.
func answers(ctx context.Context, url string, want int) error {
	return send(ctx, http.MethodGet, url, nil, nil, want)
}

// send sends a request, and returns an error unless the answer has a status. It follows no redirects.
func send(ctx context.Context, method, url string, body io.Reader, config *tls.Config, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request) // a client would follow redirects
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != want {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

// writeServing writes the certificate of a webhook's Service into a directory.
func (c *Cluster) writeServing(host, dir string) error {
	serving, err := c.ca.Issue(host)
	if err != nil {
		return err
	}
	_, err = serving.Write(dir, "tls")
	return err
}

// path returns the path of a file in the cluster's directory.
func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}
