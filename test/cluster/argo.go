// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Argo Rollouts of a cluster that was started [WithArgo], named as in its own manifests.
const (
	ArgoNamespace      = "argo-rollouts"
	ArgoServiceAccount = "argo-rollouts"
	// ArgoConfigMap has the plugins. The controller reads it at startup only.
	ArgoConfigMap = "argo-rollouts-config"
)

// pluginsGrace bounds the wait for plugins to exit after the controller.
const pluginsGrace = 5 * time.Second

var argoComponent = component{
	name: Argo, module: argoModule, program: "rollouts-controller",
	install: installArgo,
	command: argoCommand,
	// Its health is ok before its caches are filled. The controller listens on all addresses: it has no flag for that.
	ready: func(ctx context.Context, c *Cluster) error {
		return answers(ctx, "http://"+address(c.port.argoHealth)+"/healthz", http.StatusOK)
	},
}

// installArgo applies Argo's own cluster-wide installation without its Deployment: namespace, service account, the published
// ClusterRole, and the binding. installArgoKinds applies the CRDs.
func installArgo(ctx context.Context, c *Cluster) error {
	built, err := c.build(ctx, argoModule)
	if err != nil {
		return err
	}
	namespace := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", ArgoNamespace)
	if err := c.Apply(ctx, "", []byte(namespace)); err != nil {
		return err
	}
	for _, path := range []string{
		filepath.Join("manifests/base", "argo-rollouts-sa.yaml"),
		filepath.Join("manifests/role", "argo-rollouts-clusterrole.yaml"),
		filepath.Join("manifests/cluster-install", "argo-rollouts-clusterrolebinding.yaml"),
	} {
		manifest, err := os.ReadFile(built.manifests(path))
		if err != nil {
			return fmt.Errorf("read manifest: %w", err)
		}
		if err := c.Apply(ctx, ArgoNamespace, manifest); err != nil {
			return err
		}
	}
	cfg, err := c.ServiceAccountConfig(ctx, ArgoNamespace, ArgoServiceAccount)
	if err != nil {
		return err
	}
	return WriteKubeconfig(cfg, c.argoKubeconfig())
}

// installArgoKinds applies Argo's CRDs.
func (c *Cluster) installArgoKinds(ctx context.Context) error {
	return c.installCRDs(ctx, argoModule, "manifests/crds", func(object *unstructured.Unstructured) bool { return object.GetKind() == crdKind })
}

// bootArgo starts the controller after the caller's prepare functions.
func (c *Cluster) bootArgo(ctx context.Context) error {
	if err := c.install(ctx, argoComponent); err != nil {
		return err
	}
	for _, prepare := range c.options.argoPrepare {
		if err := prepare(ctx, c); err != nil {
			return fmt.Errorf("prepare %s: %w", Argo, err)
		}
	}
	return c.run(ctx, argoComponent)
}

// argoKubeconfig returns the path of a kubeconfig with the token of Argo's service account.
func (c *Cluster) argoKubeconfig() string { return c.path(Argo + ".kubeconfig") }

func argoCommand(c *Cluster) (command, error) {
	// Plugins end with a container. Here they end a moment after the controller, and the next controller can't overwrite a running
	// program.
	earlier, _ := filepath.Glob(filepath.Join(c.path("plugin-bin"), "*")) // the pattern is valid
	for _, folder := range earlier {
		if err := os.RemoveAll(folder); err != nil {
			return command{}, fmt.Errorf("remove plugins of an earlier controller: %w", err)
		}
	}
	kubeconfig := c.argoKubeconfig()
	return command{
		args: []string{
			"--kubeconfig=" + kubeconfig,
			"--leader-elect=false",
			"--healthzPort=" + strconv.Itoa(c.port.argoHealth),
			"--metricsPort=" + strconv.Itoa(c.port.argoMetrics),
		},
		// Plugins inherit the environment. In a pod they would find the mounted token, and their temporary files would go with the pod.
		env: []string{"ARGO_ROLLOUTS_NAMESPACE=" + ArgoNamespace, "KUBECONFIG=" + kubeconfig, "KUBERNETES_SERVICE_HOST=", "TMPDIR=" + c.dir},
	}, nil
}

// ArgoMetrics returns the URL of the controller's metrics, or "" without [WithArgo].
func (c *Cluster) ArgoMetrics() string {
	if !c.options.argo {
		return ""
	}
	return "http://" + address(c.port.argoMetrics) + "/metrics"
}

// KubectlArgo builds Argo's kubectl plugin, if it is not built yet, and returns its path.
func KubectlArgo(ctx context.Context, opts ...Option) (string, error) {
	o, err := newOptions(opts)
	if err != nil {
		return "", err
	}
	built, err := argoModule(o.versions).build(ctx, o.log)
	return built.program("kubectl-argo-rollouts"), err
}

// ArgoManifests returns the folder of Argo's own kustomizations.
func (c *Cluster) ArgoManifests(ctx context.Context) (string, error) {
	built, err := c.build(ctx, argoModule)
	if err != nil {
		return "", err
	}
	return built.manifests("manifests"), nil
}

// PluginProcesses returns the ids of the plugin processes of this cluster's controllers, also of one that has exited. It finds them
// by their programs, which are copies in the cluster's directory.
func (c *Cluster) PluginProcesses() []int {
	var found []int
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		program, err := os.Readlink(link)
		if err != nil {
			continue
		}
		if inside, err := filepath.Rel(c.path("plugin-bin"), program); err != nil || !filepath.IsLocal(inside) {
			continue
		}
		if id, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			found = append(found, id)
		}
	}
	return found
}

// endPlugins waits until the plugins of an exited controller have exited, and kills the remaining ones.
func (c *Cluster) endPlugins() {
	for deadline := time.Now().Add(pluginsGrace); len(c.PluginProcesses()) > 0; time.Sleep(25 * time.Millisecond) {
		if time.Now().Before(deadline) {
			continue
		}
		for _, id := range c.PluginProcesses() {
			c.logf("plugin process %d outlives its controller by %s: killed", id, pluginsGrace)
			_ = syscall.Kill(id, syscall.SIGKILL)
		}
		return
	}
}
