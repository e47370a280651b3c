// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// officialPrograms are Kubernetes' own. The sums are those that kOps pins (pkg/assets/assetdata), which are Kubernetes' published ones.
var officialPrograms = prebuilt{
	site: "https://dl.k8s.io/release/",
	sums: map[string]string{
		"v1.36.3/bin/linux/amd64/kube-apiserver":          "1f217d397234a6d065da663c6e086fdb02c0f0de97a0758ff3e6f3956f4ef8ab",
		"v1.36.3/bin/linux/amd64/kube-controller-manager": "7edfe976d5a06c7a702d653e914095f4a732a04bb2139115b6a6eba6a9b781c7",
		"v1.36.3/bin/linux/amd64/kube-scheduler":          "b8955d4518c902110b50a825364339b1fb673822518ce0ba081a69ed634f8eee",
		"v1.36.3/bin/linux/arm64/kube-apiserver":          "16001b9d35d23634c361a1e2b7b0fc7abe186984af697ef7a869c8c8cded78b7",
		"v1.36.3/bin/linux/arm64/kube-controller-manager": "27868a5c822824945b93f2d8a724a5dcd99affc68b47230ae766bff8795bbb84",
		"v1.36.3/bin/linux/arm64/kube-scheduler":          "ca1c7cd0033942bf9ef7eac80e18375d91f6f29487244c3e685f11163b01a88d",
	},
}

// WithPrebuilt downloads Kubernetes' official programs unless they were built or downloaded before. If there are none for this
// platform and version, or the download fails, they are built. A wrong checksum is an error.
func WithPrebuilt() Option { return func(o *options) { o.prebuilt = officialPrograms } }

// prebuilt are programs that can be downloaded. The zero value has none.
type prebuilt struct {
	site string
	// sums are the SHA-256 sums, in hexadecimal, by the path below the site: VERSION/bin/OS/ARCHITECTURE/PROGRAM.
	sums map[string]string
}

// download is a program of a module that is downloaded instead of built.
type download struct {
	name, url, sum string
}

// errNoDownload means that a program can't be downloaded, so that it has to be built.
var errNoDownload = errors.New("can't be downloaded")

// downloadTime bounds the download of one program, of about 100 MB.
const downloadTime = 10 * time.Minute

// replace returns the module with downloads in place of the programs that are prebuilt, and reports whether there is one.
func (p prebuilt) replace(m module, on platform) (module, bool) {
	own := m.programs
	m.programs = nil
	for _, program := range own {
		path := m.version + "/bin/" + on.goos + "/" + on.goarch + "/" + program.name
		if sum, ok := p.sums[path]; ok {
			m.downloads = append(m.downloads, download{program.name, p.site + path, sum})
		} else {
			m.programs = append(m.programs, program)
		}
	}
	return m, len(m.downloads) > 0
}

// obtain returns the module's programs: those built before, else prebuilt ones, else newly built ones.
func (o options) obtain(ctx context.Context, m module, log io.Writer) (build, error) {
	downloaded, ok := o.prebuilt.replace(m, hostPlatform())
	if !ok {
		return m.build(ctx, log)
	}
	if done, _, err := m.cached(); err != nil || exists(done.dir) {
		return done, err
	}
	done, err := downloaded.build(ctx, log)
	if errors.Is(err, errNoDownload) && ctx.Err() == nil {
		_, _ = fmt.Fprintf(log, "cluster: %v: it is built instead\n", err)
		return m.build(ctx, log)
	}
	return done, err
}

// explainPrebuilt says once what becomes of [WithPrebuilt].
func (o options) explainPrebuilt(log io.Writer) {
	if o.prebuilt.site == "" {
		return
	}
	on, m := hostPlatform(), kubernetesModule(o.versions)
	if _, ok := o.prebuilt.replace(m, on); !ok {
		_, _ = fmt.Fprintf(log, "cluster: no prebuilt %s for %s/%s: it is built instead\n", m, on.goos, on.goarch)
	} else if done, _, err := m.cached(); err == nil && exists(done.dir) {
		_, _ = fmt.Fprintf(log, "cluster: %s is built already: nothing is downloaded\n", m)
	}
}

// fetch downloads the module's prebuilt programs into bin, which nothing runs from before all their checksums are right.
func (m module) fetch(ctx context.Context, bin string, log io.Writer) error {
	for _, d := range m.downloads {
		if err := os.MkdirAll(bin, 0o755); err != nil {
			return fmt.Errorf("create build directory: %w", err)
		}
		if err := d.fetch(ctx, filepath.Join(bin, d.name), log); err != nil {
			return fmt.Errorf("%s of %s: %w", d.name, m, err)
		}
	}
	return nil
}

func (d download) fetch(ctx context.Context, path string, log io.Writer) error {
	var total, have atomic.Int64
	defer reportProgress(log, func() string {
		return fmt.Sprintf("download %s: %d of %d MB", d.url, have.Load()>>20, total.Load()>>20)
	})()
	ctx, cancel := context.WithTimeout(ctx, downloadTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoDownload, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s: %s", errNoDownload, d.url, response.Status)
	}
	total.Store(max(response.ContentLength, 0))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, hash, counter{&have}), response.Body)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%w: %s: %w", errNoDownload, d.url, err)
	}
	if sum := hex.EncodeToString(hash.Sum(nil)); sum != d.sum {
		return fmt.Errorf("wrong checksum: %s has SHA-256 %s instead of %s; nothing of it is kept, and without PREBUILT=yes it is built", d.url, sum, d.sum)
	}
	return nil
}

// counter counts the bytes written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
