// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// plugins is the plugins of Argo's controller, in whatever file they are configured.
type plugins struct {
	StepPlugins          []map[string]string `json:"stepPlugins"`
	TrafficRouterPlugins []map[string]string `json:"trafficRouterPlugins"`
}

// The values of Argo's chart make the Deployment and ConfigMap that the component makes.
func TestArgoValuesEqualComponent(t *testing.T) {
	var values struct {
		Controller struct {
			plugins
			InitContainers []corev1.Container   `json:"initContainers"`
			VolumeMounts   []corev1.VolumeMount `json:"volumeMounts"`
			Volumes        []corev1.Volume      `json:"volumes"`
		} `json:"controller"`
	}
	read(t, "argo/values.yaml", &values)
	var deployment appsv1.Deployment
	read(t, "argo/plugin/deployment.yaml", &deployment)
	pod := deployment.Spec.Template.Spec
	got := []any{values.Controller.InitContainers, values.Controller.VolumeMounts, values.Controller.Volumes}
	assert.Empty(t, cmp.Diff([]any{pod.InitContainers, pod.Containers[0].VolumeMounts, pod.Volumes}, got), "-component +values")
	assert.Empty(t, cmp.Diff(configured(t, "argo/plugin/configmap.yaml"), values.Controller.plugins), "-component +values")
}

// OpenShift's two files name one plugin in one place, under the name that Rollouts use.
func TestOpenShiftPluginIsOne(t *testing.T) {
	var manager struct {
		Spec struct {
			Plugins struct {
				TrafficManagement []map[string]string `json:"trafficManagement"`
			} `json:"plugins"`
		} `json:"spec"`
	}
	read(t, "argo/openshift/rolloutmanager.yaml", &manager)
	steps := configured(t, "argo/openshift/configmap.yaml").StepPlugins
	assert.Empty(t, cmp.Diff(steps, manager.Spec.Plugins.TrafficManagement), "-step plugin +traffic router")
	want := configured(t, "argo/plugin/configmap.yaml").StepPlugins[0]["name"]
	assert.True(t, len(steps) == 1 && steps[0]["name"] == want, "the plugins are %v, want one named %s", steps, want)
}

// configured returns the plugins of a ConfigMap.
func configured(t *testing.T, path string) plugins {
	t.Helper()
	var configMap corev1.ConfigMap
	read(t, path, &configMap)
	var all plugins
	for key, list := range map[string]*[]map[string]string{"stepPlugins": &all.StepPlugins, "trafficRouterPlugins": &all.TrafficRouterPlugins} {
		require.NoError(t, yaml.Unmarshal([]byte(configMap.Data[key]), list), "%s: %s", path, key)
	}
	return all
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(raw, into), path)
}
