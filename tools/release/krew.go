// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// krewFile is the manifest with which krew installs `kubectl lockstep`.
const krewFile = "lockstep.yaml"

func (r *release) writeKrewManifest() error {
	const home = "https://github.com/lockstep-rollouts/lockstep"
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: lockstep
spec:
  version: %s
  homepage: %s
  shortDescription: Progressive delivery for LeaderWorkerSet
  description: |
    Releases LeaderWorkerSets in complete groups of pods: canary, blue-green
    or in place, with traffic, gates and rollback.
  platforms:
`, r.version, home)
	for _, p := range r.platforms {
		sum, err := checksum(filepath.Join(r.out, p.tarGz()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, `  - selector: {matchLabels: {os: %s, arch: %s}}
    uri: %s/releases/download/%s/%s
    sha256: %s
    bin: %s
`, p.os, p.arch, home, r.version, p.tarGz(), sum, p.executable())
	}
	return r.write(krewFile, []byte(b.String()))
}
