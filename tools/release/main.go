// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release builds everything that a release of Lockstep publishes, from a checkout:
//
//	go run ./tools/release -version v0.1.0
//
// The same commit and version make the same bytes: timestamps are the commit's. Nothing is published or signed; docs/releasing.md says
// which workflow does.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var r release
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.source, "source", ".", "the checkout")
	flags.StringVar(&r.out, "out", "dist", "the new folder of the release")
	flags.StringVar(&r.version, "version", "", "the version, such as v0.1.0")
	flags.StringVar(&r.image, "image", "ghcr.io/lockstep-rollouts/lockstep", "the name of the image in its registry")
	flags.BoolVar(&r.snapshot, "snapshot", false, "build a checkout with changes, too: for tests, not to be published")
	only := flags.String("platform", "", "build for this platform only, such as linux/amd64 (default: all)")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	r.platforms = slices.DeleteFunc(slices.Clone(platforms), func(p platform) bool { return *only != "" && p.String() != *only })
	if len(r.platforms) == 0 {
		return fmt.Errorf("the platform is %q: want one of %v", *only, platforms)
	}
	if !semantic.MatchString(r.version) {
		return fmt.Errorf("the version is %q: want a semantic version such as v0.1.0", r.version)
	}
	if err := r.readCommit(ctx); err != nil {
		return err
	}
	return r.build(ctx)
}

// release is one release, which build builds.
type release struct {
	// source is the checkout, out the folder of the release, which must not exist.
	source, out string
	// version is a semantic version with a leading v.
	version string
	// image is the name of the image in its registry, without a tag.
	image     string
	platforms []platform
	// snapshot allows a checkout with changes.
	snapshot bool

	// commit is the commit of the checkout, and date its date: readCommit.
	commit string
	date   time.Time
}

var semantic = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// build builds the release. What it does not complete it removes.
func (r *release) build(ctx context.Context) (err error) {
	// An existing folder could have files of another release.
	if err := os.Mkdir(r.out, 0o750); err != nil {
		return fmt.Errorf("create the folder of the release: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(r.out))
		}
	}()
	for _, p := range r.platforms {
		if err := r.buildBinary(ctx, p); err != nil {
			return err
		}
	}
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return fmt.Errorf("read the license: %w", err)
	}
	if err := r.write("LICENSE", license); err != nil {
		return err
	}
	digest, err := r.buildImage()
	if err != nil {
		return fmt.Errorf("build the image: %w", err)
	}
	if err := r.packageManifests(digest); err != nil {
		return fmt.Errorf("package the manifests: %w", err)
	}
	if err := r.writeBillOfMaterials(ctx); err != nil {
		return fmt.Errorf("write the SBOM: %w", err)
	}
	return r.writeChecksums()
}

// readCommit reads the commit, of which nothing may be changed.
func (r *release) readCommit(ctx context.Context) error {
	// Untracked files count too: the build may read them.
	changes, err := r.command(ctx, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changes != "" && !r.snapshot {
		return fmt.Errorf("a release is built from a commit, and these files differ from it:\n%s", changes)
	}
	line, err := r.command(ctx, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(line, " ")
	date, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("read the commit's date: %w", err)
	}
	r.commit, r.date = commit, time.Unix(date, 0).UTC()
	return nil
}

// command runs a program in the checkout, and returns its output.
func (r *release) command(ctx context.Context, name string, args ...string) (string, error) {
	return r.commandWith(ctx, nil, name, args...)
}

func (r *release) commandWith(ctx context.Context, environment []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = r.source, append(os.Environ(), environment...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	return strings.TrimRight(stdout.String(), "\n"), nil
}

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
	// The builder's own flags must not change the bytes.
	_, err = r.commandWith(ctx, []string{"CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS=" + p.os, "GOARCH=" + p.arch},
		// A build id and paths differ between machines.
		"go", "build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false",
		"-ldflags=-s -w -buildid= -X github.com/lockstep-rollouts/lockstep/internal/cli.buildVersion="+r.version, "-o", path, "./cmd/lockstep")
	return err
}
