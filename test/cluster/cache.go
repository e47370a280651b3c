package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// CacheEnv names the environment variable that moves the folder in which built programs are kept.
const CacheEnv = "LOCKSTEP_CLUSTER_CACHE"

// cacheRoot is where built programs are kept, outside any work tree.
func cacheRoot() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache folder (set %s instead): %w", CacheEnv, err)
	}
	return filepath.Join(dir, "lockstep", "cluster"), nil
}

// platform is what, beside the sources, decides which programs come out of a build.
type platform struct {
	goVersion, goos, goarch string
}

func hostPlatform() platform {
	return platform{goVersion: runtime.Version(), goos: runtime.GOOS, goarch: runtime.GOARCH}
}

// cacheKey identifies a build: the same key means the same programs. It changes with the module's files, the
// platform and the way we build.
func (m module) cacheKey(dir string, p platform) (string, error) {
	h := sha256.New()
	for _, name := range m.sources() {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("read %s of module %s: %w", name, m.name, err)
		}
		_, _ = fmt.Fprintf(h, "%s %d\n%s", name, len(content), content)
	}
	_, _ = fmt.Fprintf(h, "%q %q %q %q %q\n", p, m.programs, m.ldflags, m.manifests, m.trims)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// build is a finished build in the cache.
type build struct {
	dir string
}

// program is the path of a binary.
func (b build) program(name string) string { return filepath.Join(b.dir, "bin", name) }

// manifests is the folder that was copied from a dependency, e.g. "config/webhook".
func (b build) manifests(folder string) string { return filepath.Join(b.dir, "manifests", folder) }
