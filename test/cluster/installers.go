// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import "context"

// WithInstallers builds the programs with which users install, [Cluster.Kubectl] and [Cluster.Helm].
func WithInstallers() Option { return func(o *options) { o.installers = true } }

// Kubectl returns the path of kubectl.
func (c *Cluster) Kubectl(ctx context.Context) (string, error) {
	return c.program(ctx, kubectlModule, "kubectl")
}

// Helm returns the path of Helm.
func (c *Cluster) Helm(ctx context.Context) (string, error) {
	return c.program(ctx, helmModule, "helm")
}

func kubectlModule(Versions) module {
	return module{
		name: "kubectl", version: "v1.36.3",
		programs: []program{{"kubectl", "k8s.io/kubernetes/cmd/kubectl"}},
	}
}

func helmModule(Versions) module {
	return module{
		name: "helm", version: "v4.3.1",
		programs: []program{{"helm", "helm.sh/helm/v4/cmd/helm"}},
	}
}
