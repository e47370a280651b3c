// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// startRegistry serves images from memory, over HTTP on loopback, where nodes pull them.
func (c *Cluster) startRegistry(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address(c.port.registry))
	if err != nil {
		return fmt.Errorf("start the registry: %w", err)
	}
	c.registry = &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	go func() { _ = c.registry.Serve(listener) }()
	pause := c.path("pause")
	if err := BuildProgram(ctx, packagePath+"/cmd/pause", pause); err != nil {
		return err
	}
	_, err = c.PushProgram(ctx, "pause:1", pause)
	return err
}

func (c *Cluster) pauseImage() string { return c.Image("pause:1") }

// Image returns the reference of an image in the registry of a cluster [WithKubelets], whether it exists there or not. A name has a
// tag, such as "model:v1".
func (c *Cluster) Image(name string) string { return address(c.port.registry) + "/" + name }

// BuildProgram builds a static program from a package of this repository.
func BuildProgram(ctx context.Context, pkg, path string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, output)
	}
	return nil
}

// PushProgram pushes an image that consists of one static program, as its entry point, and runs as a user without rights. It returns
// the image's reference.
func (c *Cluster) PushProgram(ctx context.Context, image, program string) (string, error) {
	reference := c.Image(image)
	built, err := imageOf(program)
	if err != nil {
		return "", fmt.Errorf("make image %s: %w", reference, err)
	}
	tag, err := name.NewTag(reference, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("make image %s: %w", reference, err)
	}
	if err := remote.Write(tag, built, remote.WithContext(ctx)); err != nil {
		return "", fmt.Errorf("push image %s: %w", reference, err)
	}
	return reference, nil
}

// PushLayout pushes the only image of an OCI layout, whose reference is then name@digest.
func (c *Cluster) PushLayout(ctx context.Context, image, dir string) error {
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("read layout %s: %w", dir, err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil {
		return fmt.Errorf("read layout %s: %w", dir, err)
	}
	if n := len(manifest.Manifests); n != 1 {
		return fmt.Errorf("layout %s has %d images, want one", dir, n)
	}
	digest := manifest.Manifests[0].Digest
	index, err := outer.ImageIndex(digest)
	if err != nil {
		return fmt.Errorf("read layout %s: %w", dir, err)
	}
	reference, err := name.NewDigest(c.Image(image)+"@"+digest.String(), name.Insecure)
	if err != nil {
		return fmt.Errorf("name the image of layout %s: %w", dir, err)
	}
	if err := remote.WriteIndex(reference, index, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("push image %s: %w", reference, err)
	}
	return nil
}

func imageOf(program string) (v1.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	base := filepath.Base(program)
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	if err := archive.WriteHeader(&tar.Header{Name: base, Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := archive.Write(content); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	opened := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil }
	of, err := tarball.LayerFromOpener(opened)
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, of)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", hostPlatform().goarch
	config.Config = v1.Config{Entrypoint: []string{"/" + base}, User: "65532:65532"}
	return mutate.ConfigFile(image, config)
}
