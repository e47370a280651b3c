// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// writeBillOfMaterials writes the modules that each Linux binary is built from, as CycloneDX.
func (r *release) writeBillOfMaterials(ctx context.Context) error {
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		binary, err := filepath.Abs(filepath.Join(r.out, p.binary()))
		if err != nil {
			return fmt.Errorf("find the binary: %w", err)
		}
		// Without a random serial number and the time. The SBOM has a checksum of the tool, which these flags make the same everywhere.
		if _, err := r.commandWith(ctx, []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false"}, "go", "tool", "-modfile="+filepath.Join("tools", "sbom", "go.mod"), "cyclonedx-gomod",
			"bin", "-json", "-noserial", "-notimestamp", "-std", "-version", r.version, "-output", binary+".cdx.json", binary); err != nil {
			return err
		}
	}
	return nil
}
