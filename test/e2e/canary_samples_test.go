// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// sample is a LeaderWorkerSet published by the LWS project.
type sample struct {
	file   string
	object *lws.LeaderWorkerSet
	raw    []byte
}

// lwsModule returns the folder of the LWS module that the driver is built with.
func lwsModule(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", "sigs.k8s.io/lws").Output()
	require.NoError(t, err)
	version, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if version != "v0.9.0" {
		t.Logf("the samples are from LWS %s", version)
	}
	return dir
}

// samples returns all LeaderWorkerSets in the manifests of a module.
func samples(t *testing.T, dir string) []sample {
	t.Helper()
	var found []sample
	for _, root := range []string{"config/samples", "docs/examples"} {
		err := filepath.WalkDir(filepath.Join(dir, root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(dir, path)
			documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
			for {
				raw := yamlDocument{}
				if err := documents.Decode(&raw); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				object := &lws.LeaderWorkerSet{}
				if err := yaml.Unmarshal(raw.content, object); err == nil && object.Kind == "LeaderWorkerSet" && object.APIVersion == lws.GroupVersion.String() {
					found = append(found, sample{name, object, raw.content})
				}
			}
		})
		require.NoError(t, err)
	}
	return found
}

// yamlDocument keeps a document unparsed.
type yamlDocument struct{ content []byte }

func (d *yamlDocument) UnmarshalJSON(raw []byte) error {
	d.content = bytes.Clone(raw)
	return nil
}

// Each workload that LWS v0.9.0 publishes is released, with a driver for the whole cluster. The nodes have what the workloads
// request: GPUs, TPU chips, node pools and volumes. Each is released once in each of the styles.
//
// Proves: Every sample that LWS publishes; volume claims.
// Proves (test, config-samples-leaderworkerset_v1_leaderworkerset): The published sample of LWS, in each style.
func TestStylesSamples(t *testing.T) {
	all := samples(t, lwsModule(t))
	require.GreaterOrEqual(t, len(all), 10, "only %d samples", len(all))
	c := cluster.Shared(t)
	e := newEnvIn(t, c)
	e.driver = driver.Start(t, driver.Kubeconfig(t, c), "")
	e.prepareNodes()
	for _, s := range all {
		t.Run(strings.ReplaceAll(strings.TrimSuffix(s.file, ".yaml"), "/", "-"), func(t *testing.T) {
			if s.object.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.SchedulerName != "" {
				t.Skipf("needs the scheduler %q", s.object.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.SchedulerName)
			}
			e := e.in(t)
			e.namespace = c.Namespace(t)
			e.observer = observe(e)
			t.Cleanup(e.observer.finish)
			if len(s.object.Spec.LeaderWorkerTemplate.VolumeClaimTemplates) > 0 {
				e.prepareVolumes(16)
			}
			require.NoError(t, c.Apply(t.Context(), e.namespace, s.raw))
			w := e.existing(s.object.Name)
			w.awaitReady()
			w.initializeUnchanged()
			for i, s := range allStyles {
				tag := fmt.Sprint("v", i+2)
				w.edit(image(tag))
				w.release("r"+tag, s.policy(policy("50%", "100%")))
				w.mustRun(tag)
			}
			w.remove(w.name, metav1.DeletePropagationBackground)
			w.awaitNothing()
		})
	}
}

// initializeUnchanged starts a release without a template change, as a host may before it has observed the change.
func (w *workload) initializeUnchanged() {
	w.t.Helper()
	c := w.initialize("nothing", quarters()).GetContext()
	assert.Equal(w.t, "NothingToRelease", c.GetReason(), "a release without a change: %s", show(c))
	w.mustBeIdle()
}

// prepareNodes sets the GKE labels on nodes that the samples select by; each node is its own pool.
func (e *env) prepareNodes() {
	e.t.Helper()
	nodes := suite.List(e.t, e.kube.CoreV1().Nodes(), metav1.ListOptions{})
	for _, n := range nodes.Items {
		patch := asJSON(map[string]any{"metadata": map[string]any{"labels": map[string]string{
			"cloud.google.com/gke-nodepool":        "pool-" + n.Name,
			"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
			"cloud.google.com/gke-tpu-topology":    "4x4",
		}}})
		suite.Patch(e.t, e.kube.CoreV1().Nodes(), n.Name, patch)
	}
}

// prepareVolumes creates volumes for claims of the class "default", since the cluster has no provisioner.
func (e *env) prepareVolumes(n int) {
	e.t.Helper()
	volumes := e.kube.CoreV1().PersistentVolumes()
	for i := range n {
		name := fmt.Sprintf("%s-%d", e.namespace, i)
		_, err := volumes.Create(e.t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: "default",
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"},
				},
			},
		}, metav1.CreateOptions{})
		require.NoError(e.t, err)
		e.t.Cleanup(func() { _ = volumes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
}

// The volume claims of added groups are deleted with them; the user's stay.
//
// Proves: Every sample that LWS publishes; volume claims.
func TestStylesVolumeClaims(t *testing.T) { inStyles(t, releaseVolumes) }

func releaseVolumes(t *testing.T, s style) {
	t.Helper()
	e := newEnv(t)
	e.prepareVolumes(12)
	w := e.adopt(model("model", 2, 2, claims("10Gi")))
	w.edit(image("v2"))
	w.release("r1", s.policy(policy("50%", "100%")))
	e.eventually("the canary's claims are deleted", func(ctx context.Context) error {
		claims, err := e.kube.CoreV1().PersistentVolumeClaims(e.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var names []string
		for _, c := range claims.Items {
			names = append(names, c.Name)
		}
		if len(names) != 4 {
			return fmt.Errorf("claims %s", strings.Join(names, ", "))
		}
		return nil
	})
}
