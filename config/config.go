// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config holds the manifests with which Lockstep is installed, so that tests and tools run under exactly
// these.
package config

import (
	"bytes"
	"embed"
	"fmt"
)

// Names in the manifests.
const (
	// Namespace is where Lockstep is installed.
	Namespace = "lockstep-system"
	// ServiceAccount is the driver's.
	ServiceAccount = "lockstep-driver"
)

//go:embed rbac/*.yaml
var files embed.FS

// RBAC is the driver's namespace, service account, role and binding, as one YAML stream.
func RBAC() ([]byte, error) {
	var all bytes.Buffer
	for _, name := range []string{"namespace", "serviceaccount", "role", "clusterrolebinding"} {
		raw, err := files.ReadFile("rbac/" + name + ".yaml")
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		all.WriteString("---\n")
		all.Write(raw)
	}
	return all.Bytes(), nil
}
