// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
)

// deployed returns the only container of config/deployment.
func deployed(t *testing.T) corev1.Container {
	t.Helper()
	text, err := os.ReadFile("../../config/deployment/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template
	if d.Namespace != config.Namespace || pod.Spec.ServiceAccountName != config.ServiceAccount {
		t.Errorf("it runs as %s/%s, which is not the account of config/rbac", d.Namespace, pod.Spec.ServiceAccountName)
	}
	for key, value := range d.Spec.Selector.MatchLabels {
		if pod.Labels[key] != value {
			t.Errorf("the pods lack label %s=%s, by which the Deployment selects them", key, value)
		}
	}
	if len(pod.Spec.Containers) != 1 {
		t.Fatalf("%d containers, want 1", len(pod.Spec.Containers))
	}
	return pod.Spec.Containers[0]
}

// The program runs with the manifest's arguments, except for the ports, and its probes succeed.
func TestDeployment(t *testing.T) { //nolint:paralleltest // its logger is also client-go's, which is global
	container := deployed(t)
	if !slices.Equal(container.Command, []string{"/lockstep"}) {
		t.Errorf("command is %q", container.Command)
	}
	var args []string
	for _, arg := range container.Args {
		for port, free := range map[string]string{"=127.0.0.1:9443": "=127.0.0.1:0", "=:9090": "=127.0.0.1:0"} {
			arg = strings.Replace(arg, port, free, 1)
		}
		args = append(args, arg)
	}
	if slices.Contains(args, "--leader-elect") {
		args = append(args, "--leader-elect-namespace=lockstep-system") // it does not run in a pod
	}
	if port := container.Ports[0]; port.Name != "metrics" || port.ContainerPort != 9090 {
		t.Errorf("port %+v is not the one of --metrics-address", port)
	}
	ctx, stop := context.WithCancel(deadline(t))
	defer stop()
	var stderr buffer
	p := Program{Args: append(args, "--kubeconfig", writeKubeconfig(t)), Stdout: &buffer{}, Stderr: &stderr}
	p.NewDriver = func(*rest.Config, connect.Settings) (server.Driver, error) {
		return fakeEngine{plugintest.NewFakeDriver(), nil}, nil
	}
	code := make(chan int, 1)
	go func() { code <- p.Run(ctx) }()
	await(ctx, t, func() bool { return strings.Contains(stderr.String(), `"msg":"serving"`) || len(code) > 0 })
	var line struct{ Metrics string }
	if err := json.Unmarshal([]byte(stderr.String()), &line); err != nil {
		t.Fatalf("the log is not one line of JSON: %v\n%s", err, stderr.String())
	}
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+line.Metrics+probe.HTTPGet.Path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK || probe.HTTPGet.Port.StrVal != "metrics" {
			t.Errorf("probe %s: %s, %v", probe.HTTPGet.Path, answer.Status, err)
		}
	}
	stop()
	if got := <-code; got != exit.OK {
		t.Errorf("exit code %d:\n%s", got, stderr.String())
	}
}
