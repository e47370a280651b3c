// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// A release of this checkout is installed on the node with Helm and with kustomize, its image by digest, and removed.
//
// Proves (test): A release's image, chart and kustomizations, installed on a node and removed.
func TestDriverInCluster(t *testing.T) {
	e := serving.NewEnv(t)
	in := &installation{Env: e, dist: buildRelease(t, e.Cluster)}
	var err error
	in.helm, err = e.Cluster.Helm(t.Context())
	require.NoError(t, err)
	in.kubectl, err = e.Cluster.Kubectl(t.Context())
	require.NoError(t, err)
	in.clear()
	in.withHelm()
	in.withKustomize()
}

// installation installs and removes a release.
type installation struct {
	*serving.Env
	dist, helm, kubectl string
}

// clear removes what the suite's cluster, or another test, has of a release's base. The end of the test restores the suite's policies, and
// the next test its driver's account.
func (in *installation) clear() {
	for _, read := range []func() ([]byte, error){deploy.RBAC, deploy.Access, deploy.Permissions} {
		manifest, err := read()
		require.NoError(in.T, err)
		in.delete("-f", in.write(string(manifest)))
	}
	in.T.Cleanup(func() {
		driver.ForgetAccount(in.Cluster)
		policies, err := deploy.Permissions()
		if err == nil {
			err = in.Cluster.Apply(context.WithoutCancel(in.T.Context()), "", policies)
		}
		assert.NoError(in.T, err)
	})
}

// withHelm pushes the chart, as the workflow does, installs it with its metrics, and releases a workload under load. An operator's
// service account calls the driver through its Service.
func (in *installation) withHelm() {
	require.NoError(in.T, in.Cluster.InstallPrometheusOperator(in.T.Context()))
	charts := "oci://" + in.Cluster.Image("charts")
	pushed := in.run(in.helm, "push", filepath.Join(in.dist, "lockstep-"+releaseVersion+".tgz"), charts, "--plain-http")
	assert.Contains(in.T, pushed, "\nDigest: sha256:", "helm push prints no digest, which the workflow signs")
	in.run(in.helm, "install", "lockstep", charts+"/lockstep", "--version", releaseVersion, "--plain-http", "--namespace", config.Namespace,
		"--create-namespace", "--set", "monitoring.enabled=true", "--wait")
	c := beginOf(serveBy(in.Env, in.dial()), canary())
	for batch, weight := range []int32{10, 50, 100} {
		c.batch(int32(batch))
		c.weigh(weight)
	}
	mustScrape(in.T, in.Env)
	c.promoted()

	manifest := in.run(in.helm, "get", "manifest", "lockstep", "--namespace", config.Namespace)
	in.run(in.helm, "uninstall", "lockstep", "--namespace", config.Namespace, "--wait")
	in.mustBeGone(manifest)
}

// withKustomize applies the base and the Deployment.
func (in *installation) withKustomize() {
	dir := in.T.TempDir()
	in.run("tar", "-xzf", filepath.Join(in.dist, "kustomize.tar.gz"), "-C", dir)
	const kustomization = "resources: [config/base, config/deployment]\n"
	files.Write(in.T, filepath.Join(dir, "kustomization.yaml"), []byte(kustomization))
	files := tlstest.NewCA(in.T).Files(in.T, "lockstep."+config.Namespace+".svc")
	in.run(in.kubectl, "apply", "-k", dir)
	in.run(in.kubectl, "-n", config.Namespace, "create", "secret", "tls", "lockstep-tls", "--cert", files.Cert, "--key", files.Key)
	in.run(in.kubectl, "-n", config.Namespace, "rollout", "status", "deployment/lockstep", "--timeout", "2m")
	manifest := in.run(in.kubectl, "kustomize", dir)
	in.delete("-k", dir)
	in.mustBeGone(manifest)
}

// delete deletes manifests in the order of docs/install.md: the aggregated ClusterRole first, which Kubernetes may create again if its
// parts are deleted with it.
func (in *installation) delete(flag, manifests string) {
	in.T.Helper()
	in.run(in.kubectl, "delete", "--ignore-not-found", "clusterrole", "lockstep-driver")
	in.run(in.kubectl, "delete", "--ignore-not-found", flag, manifests)
}

// mustBeGone fails if an object of a manifest still exists.
func (in *installation) mustBeGone(manifest string) {
	in.T.Helper()
	assert.Empty(in.T, in.run(in.kubectl, "get", "-f", in.write(manifest), "--ignore-not-found", "-o", "name"), "after the removal these still exist")
}

// write returns a file of the manifest.
func (in *installation) write(manifest string) string {
	in.T.Helper()
	file := filepath.Join(in.T.TempDir(), "manifest.yaml")
	files.Write(in.T, file, []byte(manifest))
	return file
}

// run runs a program on the cluster, and returns its output.
func (in *installation) run(program string, args ...string) string {
	in.T.Helper()
	cmd := exec.CommandContext(in.T.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+in.Cluster.Kubeconfig(), "HOME="+in.T.TempDir())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		in.T.Fatalf("%s: %v\n%s", cmd, err, stderr.String())
	}
	return string(output)
}

// mustScrape reads the release's metrics as the PodMonitor has Prometheus do: from the pod, by HTTPS, with the token in its Secret.
func mustScrape(t *testing.T, e *serving.Env) {
	t.Helper()
	pods, err := e.Kube.CoreV1().Pods(config.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=lockstep"})
	require.True(t, err == nil && len(pods.Items) == 1, "the driver's pods: %v, %v", pods, err)
	secret := suite.Get(t.Context(), t, e.Kube.CoreV1().Secrets(config.Namespace), "lockstep-metrics-token")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	scrape := func(token string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+pods.Items[0].Status.PodIP+":9090/metrics", http.NoBody)
		require.NoError(t, err)
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	want := fmt.Sprintf("lockstep_release_batches{namespace=%q,workload=\"model\"} 3\n", e.Namespace)
	code, body := scrape(string(secret.Data["token"]))
	assert.True(t, code == http.StatusOK && strings.Contains(body, want), "/metrics answers %d, and has no %s", code, want)
	code, body = scrape("")
	assert.Equal(t, http.StatusUnauthorized, code, "/metrics without a token answers %d: %.200s", code, body)
}

// dial returns a client with the permissions of lockstep-operator in the namespace.
func (in *installation) dial() *driver.Driver {
	t, e := in.T, in.Env
	t.Helper()
	secret := suite.Get(t.Context(), t, e.Kube.CoreV1().Secrets(config.Namespace), "lockstep-tls")
	svc := suite.Get(t.Context(), t, e.Kube.CoreV1().Services(config.Namespace), "lockstep")
	e.Apply(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: operator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lockstep-operator}
subjects: [{kind: ServiceAccount, name: operator, namespace: %s}]
`, e.Namespace)
	operator, err := e.Kube.CoreV1().ServiceAccounts(e.Namespace).CreateToken(t.Context(), "operator",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"lockstep"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	require.NoError(t, errors.Join(os.WriteFile(token, []byte(operator.Status.Token), 0o600), os.WriteFile(ca, secret.Data["ca.crt"], 0o600)))
	// The node learns the Service's address a moment after the driver is available.
	client, err := plugin.Dial(t.Context(), svc.Spec.ClusterIP+":9443", plugin.DialOptions{
		WaitForReady: true, CA: ca, ServerName: "lockstep." + config.Namespace + ".svc", TokenFile: token,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return &driver.Driver{Client: client}
}

// releaseVersion is the version of the release that the test builds.
const releaseVersion = "0.0.0-test"

// buildRelease builds a release and pushes its image. It returns the release's folder.
func buildRelease(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	const name = "lockstep"
	dist := filepath.Join(t.TempDir(), "dist")
	build := exec.CommandContext(t.Context(), filepath.Join("..", "..", "tools", "release", "release.sh"))
	build.Env = append(build.Environ(), "SNAPSHOT=1", "PLATFORMS=linux/"+runtime.GOARCH, "VERSION=v"+releaseVersion, "IMAGE="+c.Image(name), "OUT="+dist)
	output, err := build.CombinedOutput()
	require.NoError(t, err, output)
	require.NoError(t, c.PushLayout(t.Context(), name, filepath.Join(dist, "image")))
	return dist
}

// A HorizontalPodAutoscaler adds groups in mid-release, by the leaders' own metric. No request is lost while it does.
//
// Proves: Groups are added by an autoscaler in mid-release of real containers.
func TestAutoscaler(t *testing.T) {
	t.Parallel()
	s := serve(t)
	suite.ServePodMetrics(t, s.Cluster)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { publish(ctx, s) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	s.Apply(`
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: model}
spec:
  scaleTargetRef: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: model}
  minReplicas: %[1]d
  maxReplicas: %[2]d
  behavior: {scaleUp: {stabilizationWindowSeconds: 0}, scaleDown: {selectPolicy: Disabled}}
  metrics: [{type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 20Mi}}}]
`, groups, groups+2)
	c := beginOf(s, canary())
	c.batch(0)
	c.weigh(10)
	c.phase("more requests", 0)
	more := stream(s)
	c.Eventually("groups are added", func(ctx context.Context) error {
		if now := c.now(ctx); now.GetStableReady() <= groups {
			return fmt.Errorf("%d stable groups are ready", now.GetStableReady())
		}
		return nil
	})
	c.Await(more, enough)
	c.Passes(more)
	c.Upgrade(1)
	c.weigh(50)
	c.promoted()
}

// publish has the metrics API serve how many requests each leader of the workload runs.
func publish(ctx context.Context, s *serving.Release) {
	const selector = "leaderworkerset.sigs.k8s.io/name=model,leaderworkerset.sigs.k8s.io/worker-index=0"
	for ctx.Err() == nil {
		pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil {
			values := map[string]int{}
			for i := range pods.Items {
				values[pods.Items[i].Name] = requestsOf(ctx, pods.Items[i].Status.PodIP)
			}
			err = suite.SetPodMetrics(ctx, s.Cluster, s.Namespace, s.Name, values)
		}
		assert.False(s.T, err != nil && ctx.Err() == nil, err)
		select { // the metric's period
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// requestsOf reads vllm:num_requests_running, 0 if the pod does not answer.
func requestsOf(ctx context.Context, ip string) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/metrics", ip, podanswer.Port), http.NoBody)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "vllm:num_requests_running "); ok {
			n, _ := strconv.Atoi(value)
			return n
		}
	}
	return 0
}
