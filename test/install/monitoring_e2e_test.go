// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package install

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

// The alerts fire when testdata/alerts_test.yaml says, by Prometheus's own tool. Each has a test that it fires, and a section of the
// documentation.
//
// Proves (test): Monitoring: alerts; the account that reads metrics; queries of the dashboard.
func TestAlerts(t *testing.T) {
	e := newEnv(t)
	promtool, err := e.cluster.Promtool(t.Context())
	require.NoError(t, err)
	var rule struct {
		Spec struct {
			Groups []struct {
				Name  string           `json:"name"`
				Rules []map[string]any `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(e.read(configDir, "monitoring", "alerts.yaml")), &rule))
	rules, err := yaml.Marshal(rule.Spec)
	require.NoError(t, err)
	dir := t.TempDir()
	e.run(promtool, "check", "rules", "--lint=all", "--lint-fatal", e.writeTo(dir, "rules.yaml", string(rules)))
	tests := e.read("testdata", "alerts_test.yaml")
	e.run(promtool, "test", "rules", e.writeTo(dir, "test.yaml", tests))

	runbook := e.read("..", "..", "docs", "alerts.md")
	for _, alert := range rule.Spec.Groups[0].Rules {
		name, _ := alert["alert"].(string)
		annotations, _ := alert["annotations"].(map[string]any)
		url, _ := annotations["runbook_url"].(string)
		assert.True(t, name != "" && strings.HasSuffix(url, "/docs/alerts.md#"+strings.ToLower(name)) && strings.Contains(runbook, "\n## "+name+"\n"),
			"alert %q has the runbook %q, and docs/alerts.md no section for it", name, url)
		assert.Contains(t, tests, "docs/alerts.md#"+strings.ToLower(name)+"\n", "no test in which %s fires", name)
	}
}

// The alert about an absent driver can be left out: Prometheus scrapes no driver inside Argo Rollouts or `lockstep batchrelease`. The
// chart does so by itself.
//
// Proves (test): Monitoring: alerts; the account that reads metrics; queries of the dashboard.
func TestAlertsWithoutServer(t *testing.T) {
	e := newEnv(t)
	chart := func(values string) string {
		return e.run(e.helm, "template", release, e.chart(), "--set", "monitoring.enabled=true,"+values)
	}
	dir := t.TempDir()
	var patches strings.Builder
	for line := range strings.Lines(e.read(configDir, "monitoring", "kustomization.yaml")) {
		if code, ok := strings.CutPrefix(line, "#   "); ok {
			patches.WriteString(code)
		}
	}
	e.writeTo(dir, "kustomization.yaml", "resources: ["+e.relative(dir, filepath.Join(configDir, "monitoring"))+"]\n"+patches.String())
	for _, test := range []struct {
		name, manifest string
		want           int
	}{
		{"the chart with a server", chart("driver.enabled=true"), 1},
		{"the chart with lockstep kruise", chart("driver.enabled=false,kruise.enabled=true"), 1},
		{"the chart with lockstep batchrelease", chart("driver.enabled=false,batchRelease.enabled=true"), 1},
		{"the chart with drivers inside Argo Rollouts", chart("driver.enabled=false,argo.enabled=true"), 0},
		{"kustomize", e.run(e.kubectl, "kustomize", filepath.Join(configDir, "monitoring")), 1},
		{"kustomize with the patch of its comment", e.run(e.kubectl, "kustomize", dir), 0},
	} {
		down, all := strings.Count(test.manifest, "alert: LockstepDriverDown\n"), strings.Count(test.manifest, "- alert: ")
		assert.True(t, down == test.want && all == 9+test.want,
			"%s: %d alerts, LockstepDriverDown %d times; want %d and %d", test.name, all, down, 9+test.want, test.want)
	}
}

// Prometheus's account may read metrics, by the token that Kubernetes writes into the Secret of the PodMonitor, and nothing else.
//
// Proves (test): Monitoring: alerts; the account that reads metrics; queries of the dashboard.
func TestMonitoringAccount(t *testing.T) {
	e := newEnv(t)
	e.operator()
	e.run(e.kubectl, "apply", "-k", filepath.Join(configDir, "base"))
	t.Cleanup(e.deleteBase)
	e.run(e.kubectl, "apply", "-k", filepath.Join(configDir, "monitoring"))
	t.Cleanup(func() { e.delete(filepath.Join(configDir, "monitoring")) })
	var token string
	await.Nil(t, "the Secret has a token", func(context.Context) error {
		var err error
		token, err = e.try(e.kubectl, "get", "secret", "lockstep-metrics-token", "-n", namespace, "-o", "go-template={{.data.token | base64decode}}")
		return err
	})
	account := "--as=system:serviceaccount:" + namespace + ":lockstep-metrics"
	assert.Equal(t, "yes\n", e.run(e.kubectl, "auth", "can-i", "get", "/metrics", account), "the account may read /metrics")
	got, err := e.try(e.kubectl, "auth", "can-i", "list", "pods", account)
	assert.Error(t, err, "the account may list pods: %s", got)
	server := e.cluster.RESTConfig().Host
	assert.Equal(t, "system:serviceaccount:"+namespace+":lockstep-metrics", e.run(e.kubectl, "auth", "whoami", "--kubeconfig="+os.DevNull, "--server="+server, "--insecure-skip-tls-verify", "--token="+token, "-o", "jsonpath={.status.userInfo.username}"),
		"the token is of")
}

// operator installs the kinds of the Prometheus operator.
func (e *env) operator() {
	e.Helper()
	require.NoError(e, e.cluster.InstallPrometheusOperator(e.Context()))
}

func (e *env) read(path ...string) string {
	e.Helper()
	raw, err := os.ReadFile(filepath.Join(path...))
	require.NoError(e, err)
	return string(raw)
}
