// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release writes the image of a release as an OCI layout, and prints the digest of its index. release.sh calls it with the layer
// of each platform:
//
//	go run ./tools/release -out dist/image -version v0.1.0 -commit COMMIT -date SECONDS linux/amd64=amd64.tar
//
// The same layers and flags make the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	var i image
	out := flag.String("out", "", "the new folder of the layout")
	flag.StringVar(&i.version, "version", "", "the version of the release, such as v0.1.0")
	flag.StringVar(&i.commit, "commit", "", "the commit that it is built from")
	date := flag.Int64("date", 0, "the date of the commit, in seconds")
	flag.Parse()
	i.date = time.Unix(*date, 0).UTC()
	fmt.Fprintln(os.Stdout, i.write(*out, flag.Args()))
}

// must ends the program with an error.
func must[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	return v
}

// image is what an image says about its release.
type image struct {
	version, commit string
	date            time.Time
}

// write writes the image of every platform, each given as PLATFORM=LAYER, and returns the digest of its index.
func (i image) write(out string, layers []string) v1.Hash {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, text := range layers {
		name, layer, _ := strings.Cut(text, "=")
		platform := must(v1.ParsePlatform(name))
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.of(platform, layer), Descriptor: v1.Descriptor{Platform: platform}})
	}
	index = mutate.Annotations(index, i.annotations()).(v1.ImageIndex)
	// The layout's own index has one entry, the image.
	must(layout.Write(out, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add:        index,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": i.version}},
	})))
	// Deployments pin the digest of the index. That of the layout around it is another.
	return must(index.Digest())
}

// of returns the image of a platform, from scratch.
func (i image) of(p *v1.Platform, layerFile string) v1.Image {
	layer := must(tarball.LayerFromFile(layerFile, tarball.WithMediaType(types.OCILayer)))
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img = must(mutate.AppendLayers(img, layer))
	config := must(img.ConfigFile())
	config.OS, config.Architecture, config.Created = p.OS, p.Architecture, v1.Time{Time: i.date}
	config.Config = v1.Config{
		// 65532 is the number of the user that distroless images call nonroot. Kubernetes checks runAsNonRoot by a number only.
		Entrypoint: []string{"/lockstep"}, User: "65532:65532", WorkingDir: "/", Labels: i.annotations(),
		Env: []string{"PATH=/"},
	}
	return must(mutate.ConfigFile(img, config))
}

// annotations are the standard ones of OCI.
func (i image) annotations() map[string]string {
	const key = "org.opencontainers.image."
	return map[string]string{
		key + "title":    "lockstep",
		key + "source":   "https://github.com/lockstep-rollouts/lockstep",
		key + "version":  i.version,
		key + "revision": i.commit,
		key + "created":  i.date.Format("2006-01-02T15:04:05Z"),
		key + "licenses": "Apache-2.0",
	}
}
