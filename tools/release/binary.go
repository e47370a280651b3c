// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// platform is an operating system and architecture, as Go names them.
type platform struct{ os, arch string }

var platforms = []platform{
	{"linux", "amd64"},
	{"linux", "arm64"},
	{"darwin", "amd64"},
	{"darwin", "arm64"},
	{"windows", "amd64"},
	{"windows", "arm64"},
}

func (p platform) String() string { return p.os + "/" + p.arch }

// binary is the name of the program as a file of the release, which Argo's controller can download.
func (p platform) binary() string {
	name := "lockstep_" + p.os + "_" + p.arch
	if p.os == "windows" {
		name += ".exe"
	}
	return name
}

// buildBinary builds a static binary.
func (r *release) buildBinary(ctx context.Context, p platform) error {
	path, err := filepath.Abs(filepath.Join(r.out, p.binary()))
	if err != nil {
		return fmt.Errorf("find the folder of the release: %w", err)
	}
	_, err = r.commandWith(ctx, []string{"CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS=" + p.os, "GOARCH=" + p.arch},
		"go", "build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false",
		"-ldflags=-s -w -buildid= -X github.com/lockstep-rollouts/lockstep/internal/cli.buildVersion="+r.version, "-o", path, "./cmd/lockstep")
	return err
}
