// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install puts Lockstep's plugin into the Argo Rollouts of a test cluster, as config/argo does in a real one.
package install

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
)

// Plugin gives Argo's service account the rights of config/argo and configures the plugins as there, but for where the
// binary lies. It is for [cluster.WithArgo]: the controller reads its configuration when it starts.
func Plugin(ctx context.Context, c *cluster.Cluster, binary string) error {
	// Where the controller keeps its copies of plugins.
	if err := os.MkdirAll(filepath.Join(c.Dir(), "plugin-bin"), 0o700); err != nil {
		return fmt.Errorf("create the plugins' folder: %w", err)
	}
	if err := c.ApplyConfig(ctx, cluster.ArgoNamespace, deploy.ArgoRBAC); err != nil {
		return err
	}
	return Configure(ctx, c, binary)
}

// Configure writes the ConfigMap alone, with more arguments for the plugins. A controller that runs has to be started again.
func Configure(ctx context.Context, c *cluster.Cluster, binary string, args ...string) error {
	plugins, err := configMap(binary, args)
	if err != nil {
		return err
	}
	return c.Apply(ctx, cluster.ArgoNamespace, plugins)
}

// entry is a plugin in Argo's ConfigMap.
type entry struct {
	Name     string   `json:"name"`
	Location string   `json:"location"`
	Args     []string `json:"args,omitempty"`
	SHA256   string   `json:"sha256,omitempty"`
}

// configMap is config/argo's ConfigMap with another binary, its checksum, and more arguments.
func configMap(binary string, args []string) ([]byte, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("read the plugin: %w", err)
	}
	binary, err = filepath.Abs(binary)
	if err != nil {
		return nil, fmt.Errorf("find the plugin: %w", err)
	}
	manifest, err := deploy.ArgoPlugins()
	if err != nil {
		return nil, err
	}
	var object struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]any    `json:"metadata"`
		Data       map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(manifest, &object); err != nil {
		return nil, fmt.Errorf("decode the ConfigMap: %w", err)
	}
	for _, kind := range []string{"stepPlugins", "trafficRouterPlugins"} {
		var entries []entry
		if err := yaml.UnmarshalStrict([]byte(object.Data[kind]), &entries); err != nil || len(entries) != 1 {
			return nil, fmt.Errorf("%d %s: %w", len(entries), kind, err)
		}
		entries[0].Location = "file://" + binary
		entries[0].SHA256 = fmt.Sprintf("%x", sha256.Sum256(program))
		entries[0].Args = append(entries[0].Args, args...)
		raw, err := yaml.Marshal(entries)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", kind, err)
		}
		object.Data[kind] = string(raw)
	}
	return yaml.Marshal(object)
}
