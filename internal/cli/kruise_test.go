// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
)

// The command accepts the manifest's arguments and listens at the manifest's ports.
func TestHostDeployments(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ command, account, path string }{
		{"kruise", "lockstep-kruise", "../../config/kruise/deployment.yaml"},
		{"batchrelease", "lockstep-batchrelease", "../../config/kruise/batchrelease/deployment.yaml"},
	} {
		t.Run(test.command, func(t *testing.T) {
			t.Parallel()
			checkHostDeployment(t, test.command, test.account, test.path)
		})
	}
}

func checkHostDeployment(t *testing.T, command, account, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template
	if d.Namespace != config.Namespace || pod.Spec.ServiceAccountName != account {
		t.Errorf("it runs as %s/%s, which is not the account of config/kruise", d.Namespace, pod.Spec.ServiceAccountName)
	}
	container := pod.Spec.Containers[0]
	root := newRootCommand(&connect.Options{Stdout: &buffer{}, Stderr: &buffer{}})
	cmd, args, err := root.Find(container.Args)
	if err != nil || cmd.Name() != command {
		t.Fatalf("%v is command %s, %v", container.Args, cmd.Name(), err)
	}
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	for _, port := range container.Ports {
		flag := cmd.Flag(port.Name + "-address")
		if flag == nil || !strings.HasSuffix(flag.Value.String(), ":"+strconv.Itoa(int(port.ContainerPort))) {
			t.Errorf("port %s %d is not the one of --%[1]s-address", port.Name, port.ContainerPort)
		}
	}
	if *d.Spec.Replicas > 1 && cmd.Flag("leader-elect").Value.String() != "true" {
		t.Error("several replicas without leader election")
	}
}

// With the driver inside, the host's endpoint has the driver's metrics.
func TestKruiseExportsDriverMetrics(t *testing.T) {
	t.Parallel()
	var got prometheus.Registerer
	p := Program{
		Args: []string{"kruise", "--kubeconfig", writeKubeconfig(t)}, Stdout: &buffer{}, Stderr: &buffer{},
		NewDriver: func(_ *rest.Config, settings lwsdriver.Options) (server.Driver, error) {
			got = settings.Metrics
			return nil, errors.New("no driver is needed")
		},
	}
	if code := p.Run(t.Context()); code == exit.OK || got != metrics.Registry {
		t.Errorf("exit code %d, the driver registers its metrics at %v", code, got)
	}
}

func TestHostUsageErrors(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"kruise", "batchrelease"} {
		for flags, want := range map[string]string{"--tls-cert a": "--driver", "now": "argument"} {
			var stderr buffer
			p := Program{Args: append([]string{host}, strings.Fields(flags)...), Stdout: &buffer{}, Stderr: &stderr}
			if code := p.Run(t.Context()); code != exit.Usage || !strings.Contains(stderr.String(), want) {
				t.Errorf("%s %s: exit code %d: %s", host, flags, code, stderr.String())
			}
		}
	}
}
