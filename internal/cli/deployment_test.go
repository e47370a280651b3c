// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

// deployed returns the only container of config/deployment.
func deployed(t *testing.T) corev1.Container {
	t.Helper()
	text, err := os.ReadFile("../../config/deployment/deployment.yaml")
	require.NoError(t, err)
	var d appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict(text, &d))
	pod := d.Spec.Template
	assert.True(t, d.Namespace == config.Namespace && pod.Spec.ServiceAccountName == config.ServiceAccount,
		"it runs as %s/%s, which is not the account of config/base", d.Namespace, pod.Spec.ServiceAccountName)
	for key, value := range d.Spec.Selector.MatchLabels {
		assert.Equal(t, value, pod.Labels[key], "the pods lack label %s=%s, by which the Deployment selects them", key, value)
	}
	require.Len(t, pod.Spec.Containers, 1, "%d containers, want 1", len(pod.Spec.Containers))
	return pod.Spec.Containers[0]
}

// The program runs with the manifest's arguments, except for the ports, and its probes succeed.
func TestDeployment(t *testing.T) { //nolint:paralleltest // its logger is also client-go's, which is global
	container := deployed(t)
	assert.True(t, slices.Equal(container.Command, []string{"/lockstep"}), "command is %q", container.Command)
	replaced := strings.NewReplacer("=:9443", "=127.0.0.1:0", "=:8081", "=127.0.0.1:0", "=:9090", "=0.0.0.0:0", "=/tls/", "="+tlsSecret(t)+"/")
	var args []string
	for _, arg := range container.Args {
		args = append(args, replaced.Replace(arg))
	}
	if slices.Contains(args, "--leader-elect") {
		args = append(args, "--leader-elect-namespace=lockstep-system") // it does not run in a pod
	}
	for _, port := range container.Ports {
		assert.True(t, slices.ContainsFunc(container.Args, func(arg string) bool { return strings.HasSuffix(arg, fmt.Sprintf("=:%d", port.ContainerPort)) }),
			"port %s is %d, on which no flag listens", port.Name, port.ContainerPort)
	}
	ctx, stop := context.WithCancel(deadline(t))
	defer stop()
	var stderr buffer
	p := Program{Args: append(args, "--kubeconfig", writeKubeconfig(t)), Stdout: &buffer{}, Stderr: &stderr}
	p.NewDriver = func(*rest.Config, lwsdriver.Options) (server.Driver, error) {
		d := plugintest.NewFakeDriver()
		return engine{d, d, untilEnd}, nil
	}
	code := make(chan int, 1)
	go func() { code <- p.Run(ctx) }()
	await.True(t, "it serves or ends", func() bool { return strings.Contains(stderr.String(), `"msg":"serving"`) || len(code) > 0 })
	var line struct{ Health, Metrics string }
	if err := json.Unmarshal([]byte(stderr.String()), &line); err != nil {
		t.Fatalf("the log is not one line of JSON: %v\n%s", err, stderr.String())
	}
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+line.Health+probe.HTTPGet.Path, nil)
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK || probe.HTTPGet.Port.StrVal != "health" {
			t.Errorf("probe %s: %s, %v", probe.HTTPGet.Path, answer.Status, err)
		}
	}
	mustBeUnauthorized(ctx, t, "https://"+strings.Replace(line.Metrics, "[::]", "127.0.0.1", 1)+"/metrics")
	stop()
	if got := <-code; got != exit.OK {
		t.Errorf("exit code %d:\n%s", got, stderr.String())
	}
}

// tlsSecret writes the files of the Secret that the manifest mounts, and returns their directory.
func tlsSecret(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("lockstep.lockstep-system.svc", nil, nil)
	require.NoError(t, err)
	for name, content := range map[string][]byte{"tls.crt": certPEM, "ca.crt": certPEM, "tls.key": keyPEM} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return dir
}

// mustBeUnauthorized fails unless a request without a token is refused.
func mustBeUnauthorized(ctx context.Context, t *testing.T, url string) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	answer, err := transport.RoundTrip(request)
	require.NoError(t, err)
	err = answer.Body.Close()
	assert.True(t, err == nil && answer.StatusCode == http.StatusUnauthorized, "GET %s without a token: %s, %v", url, answer.Status, err)
}
