// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageLayout is the folder of the image in the release, an OCI layout.
const imageLayout = "image"

// buildImage writes the image of every Linux platform, and returns the digest of its index. The image has the binary and its license
// only.
func (r *release) buildImage() (string, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		image, err := r.imageOf(p)
		if err != nil {
			return "", err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	index = mutate.Annotations(index, r.annotations()).(v1.ImageIndex)
	// The layout's own index has one entry, the image.
	if _, err := layout.Write(filepath.Join(r.out, imageLayout), mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add:        index,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": r.version}},
	})); err != nil {
		return "", fmt.Errorf("write the layout: %w", err)
	}
	// Deployments pin the digest of the index. That of the layout around it is another.
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("compute the digest: %w", err)
	}
	return digest.String(), r.write("image-digest.txt", []byte(r.image+":"+r.version+"@"+digest.String()+"\n"))
}

// imageOf returns the image of a platform, from scratch.
func (r *release) imageOf(p platform) (v1.Image, error) {
	program, err := os.ReadFile(filepath.Join(r.out, p.binary()))
	if err != nil {
		return nil, fmt.Errorf("read the binary: %w", err)
	}
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return nil, fmt.Errorf("read the license: %w", err)
	}
	content, err := archive([]file{{"lockstep", 0o755, program}, {"LICENSE", 0o644, license}}, r.date)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, fmt.Errorf("add the layer: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.date}
	config.Config = v1.Config{
		// 65532 is the number of the user that distroless images call nonroot. Kubernetes checks runAsNonRoot by a number only.
		Entrypoint: []string{"/lockstep"}, User: "65532:65532", WorkingDir: "/", Labels: r.annotations(),
		Env: []string{"PATH=/"},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, fmt.Errorf("set the configuration: %w", err)
	}
	return image, nil
}

// annotations are the standard ones of OCI.
func (r *release) annotations() map[string]string {
	const key = "org.opencontainers.image."
	return map[string]string{
		key + "title":    "lockstep",
		key + "source":   "https://github.com/lockstep-rollouts/lockstep",
		key + "version":  r.version,
		key + "revision": r.commit,
		key + "created":  r.date.Format("2006-01-02T15:04:05Z"),
		key + "licenses": "Apache-2.0",
	}
}
