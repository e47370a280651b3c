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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	require.NoError(t, err)
	var d appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict(text, &d))
	pod := d.Spec.Template
	assert.True(t, d.Namespace == config.Namespace && pod.Spec.ServiceAccountName == account,
		"it runs as %s/%s, which is not the account of config/kruise", d.Namespace, pod.Spec.ServiceAccountName)
	container := pod.Spec.Containers[0]
	root := newRootCommand(&connect.Options{Stdout: &buffer{}, Stderr: &buffer{}})
	cmd, args, err := root.Find(container.Args)
	if err != nil || cmd.Name() != command {
		t.Fatalf("%v is command %s, %v", container.Args, cmd.Name(), err)
	}
	require.NoError(t, cmd.ParseFlags(args))
	for _, port := range container.Ports {
		flag := cmd.Flag(port.Name + "-address")
		assert.True(t, flag != nil && strings.HasSuffix(flag.Value.String(), ":"+strconv.Itoa(int(port.ContainerPort))),
			"port %s %d is not the one of --%[1]s-address", port.Name, port.ContainerPort)
	}
	assert.False(t, *d.Spec.Replicas > 1 && cmd.Flag("leader-elect").Value.String() != "true", "several replicas without leader election")
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
	code := p.Run(t.Context())
	assert.True(t, code != exit.OK && got == metrics.Registry, "exit code %d, the driver registers its metrics at %v", code, got)
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
