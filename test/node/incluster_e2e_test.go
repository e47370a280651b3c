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
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/test/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// A release of this checkout runs on the node: its chart, its image by digest, the chart's service account and certificate. An
// operator's service account calls the driver through its Service.
func TestDriverInCluster(t *testing.T) {
	e := serving.NewEnv(t)
	c := beginOf(serveBy(e, deploy(t, e)), canary())
	for batch, weight := range []int32{10, 50, 100} {
		c.batch(int32(batch))
		c.weigh(weight)
	}
	mustScrape(t, e)
	c.promoted()
}

// mustScrape reads the release's metrics as the PodMonitor has Prometheus do: from the pod, by HTTPS, with the token in its Secret.
func mustScrape(t *testing.T, e *serving.Env) {
	t.Helper()
	pods, err := e.Kube.CoreV1().Pods(config.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=lockstep"})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("the driver's pods: %v, %v", pods, err)
	}
	secret, err := e.Kube.CoreV1().Secrets(config.Namespace).Get(t.Context(), "lockstep-metrics-token", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	scrape := func(token string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+pods.Items[0].Status.PodIP+":9090/metrics", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	want := fmt.Sprintf("lockstep_release_batches{namespace=%q,workload=\"model\"} 3\n", e.Namespace)
	if code, body := scrape(string(secret.Data["token"])); code != http.StatusOK || !strings.Contains(body, want) {
		t.Errorf("/metrics answers %d, and has no %s", code, want)
	}
	if code, body := scrape(""); code != http.StatusUnauthorized {
		t.Errorf("/metrics without a token answers %d: %.200s", code, body)
	}
}

// deploy installs the driver, and returns a client with the permissions of lockstep-operator in the namespace.
func deploy(t *testing.T, e *serving.Env) *driver.Driver {
	t.Helper()
	chart := release(t, e.Cluster)
	if err := e.Cluster.InstallPrometheusOperator(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, read := range []func() ([]byte, error){config.RBAC, config.Access, func() ([]byte, error) { return render(t, e.Cluster, chart) }} {
		manifest, err := read()
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Cluster.Apply(t.Context(), config.Namespace, manifest); err != nil {
			t.Fatal(err)
		}
	}
	deployments, secrets := e.Kube.AppsV1().Deployments(config.Namespace), e.Kube.CoreV1().Secrets(config.Namespace)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := errors.Join(deployments.Delete(ctx, "lockstep", metav1.DeleteOptions{}), secrets.Delete(ctx, "lockstep-tls", metav1.DeleteOptions{}))
		if err != nil {
			t.Error(err)
		}
	})
	await.Nil(t, "the driver is available", func(ctx context.Context) error {
		d, err := deployments.Get(ctx, "lockstep", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return available(d)
	})
	secret, err := secrets.Get(t.Context(), "lockstep-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	svc, err := e.Kube.CoreV1().Services(config.Namespace).Get(t.Context(), "lockstep", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	if err := errors.Join(os.WriteFile(token, []byte(operator.Status.Token), 0o600), os.WriteFile(ca, secret.Data["ca.crt"], 0o600)); err != nil {
		t.Fatal(err)
	}
	// The node learns the Service's address a moment after the driver is available.
	client, err := plugin.Dial(t.Context(), svc.Spec.ClusterIP+":9443", plugin.WithWaitForReady(),
		plugin.WithCA(ca), plugin.WithServerName("lockstep."+config.Namespace+".svc"), plugin.WithTokenFile(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return &driver.Driver{Client: client}
}

// release builds a release, pushes its image, and returns its packaged chart.
func release(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	const name, version = "lockstep", "0.0.0-test"
	dist := filepath.Join(t.TempDir(), "dist")
	build := exec.CommandContext(t.Context(), "go", "run", "./tools/release", "-snapshot", "-platform", "linux/"+runtime.GOARCH,
		"-version", "v"+version, "-image", c.Image(name), "-out", dist)
	build.Dir = filepath.Join("..", "..")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if err := c.PushLayout(t.Context(), name, filepath.Join(dist, "image")); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dist, "lockstep-"+version+".tgz")
}

// render returns what a chart renders, without the ClusterRoles that the drivers of other tests have too.
func render(t *testing.T, c *cluster.Cluster, chart string) ([]byte, error) {
	t.Helper()
	helm, err := c.Helm(t.Context())
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(t.Context(), helm, "template", "lockstep", chart, "--namespace", config.Namespace,
		"--set", "monitoring.enabled=true")
	cmd.Stderr = os.Stderr
	rendered, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	documents := slices.DeleteFunc(strings.Split(string(rendered), "\n---\n"), func(document string) bool {
		return strings.Contains(document, "\nkind: ClusterRole\n") && !strings.Contains(document, "lockstep-metrics-reader")
	})
	return []byte(strings.Join(documents, "\n---\n")), nil
}

func available(d *appsv1.Deployment) error {
	if d.Status.AvailableReplicas == 0 || d.Status.ObservedGeneration < d.Generation {
		return fmt.Errorf("%s: %v", d.Name, d.Status)
	}
	return nil
}

// A HorizontalPodAutoscaler adds groups in mid-release, by the leaders' own metric. No request is lost while it does.
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
		if err != nil && ctx.Err() == nil {
			s.T.Error(err)
		}
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
