// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
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

// executable is the name of the program in archives.
func (p platform) executable() string {
	if p.os == "windows" {
		return "lockstep.exe"
	}
	return "lockstep"
}

// binary is the name of the program as a file of the release, which Argo's controller can download.
func (p platform) binary() string {
	name := "lockstep_" + p.os + "_" + p.arch
	if p.os == "windows" {
		name += ".exe"
	}
	return name
}

func (p platform) tarGz() string { return "lockstep_" + p.os + "_" + p.arch + ".tar.gz" }

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

// archiveBinary writes the archive of a binary and its license.
func (r *release) archiveBinary(p platform) error {
	program, err := os.ReadFile(filepath.Join(r.out, p.binary()))
	if err != nil {
		return fmt.Errorf("read the binary: %w", err)
	}
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return fmt.Errorf("read the license: %w", err)
	}
	return r.writeArchive(p.tarGz(), []file{
		{p.executable(), 0o755, program},
		{"LICENSE", 0o644, license},
	})
}
