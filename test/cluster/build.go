package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Build makes sure that the programs of a cluster with these options are in the cache. It takes minutes the first time and
// is called by [Start]; call it before to keep the build out of a test's time limit, or where the network cannot be reached
// later. Progress goes to log. Processes that build at the same time wait for one of them.
func Build(ctx context.Context, log io.Writer, opts ...Option) error {
	return newOptions(opts).build(ctx, log)
}

// modules are those that the cluster needs. LWS and the CRD of KEDA may be added to one that starts without them.
func (o options) modules() []module {
	modules := []module{kubernetesModule, lwsModule, kwokModule, kedaModule, batchReleaseModule}
	if o.gateway {
		modules = append(modules, gatewayAPIModule)
	}
	if o.traefik {
		modules = append(modules, traefikModule)
	}
	if o.argo {
		modules = append(modules, argoModule)
	}
	if o.kruise != "" {
		modules = append(modules, kruiseModules[o.kruise])
	}
	return modules
}

func (o options) build(ctx context.Context, log io.Writer) error {
	if _, known := kruiseModules[o.kruise]; o.kruise != "" && !known {
		return fmt.Errorf("build Kruise Rollouts %s: there are %s and %s", o.kruise, Kruise062, Kruise063)
	}
	for _, m := range o.modules() {
		if _, err := m.build(ctx, log); err != nil {
			return err
		}
	}
	return nil
}

// build returns the module's programs, from the cache if they are there.
func (m module) build(ctx context.Context, log io.Writer) (build, error) {
	source, err := m.folder(ctx)
	if err != nil {
		return build{}, err
	}
	key, err := m.cacheKey(source, hostPlatform())
	if err != nil {
		return build{}, err
	}
	root, err := cacheRoot()
	if err != nil {
		return build{}, err
	}
	done := build{dir: filepath.Join(root, m.name, key)}
	if exists(done.dir) {
		return done, nil
	}
	unlock, err := lockFile(ctx, filepath.Join(root, m.name, "lock"), log)
	if err != nil {
		return build{}, err
	}
	defer unlock()
	if exists(done.dir) {
		return done, nil
	}
	return done, m.buildInto(ctx, source, done.dir, log)
}

// buildInto builds beside the destination and renames at the end, so that the destination is complete or absent.
func (m module) buildInto(ctx context.Context, source, destination string, log io.Writer) error {
	temporary, err := os.MkdirTemp(filepath.Dir(destination), ".building-")
	if err != nil {
		return fmt.Errorf("create build folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	for i, p := range m.programs {
		what := fmt.Sprintf("build %s (%s, %d of %d)", p.name, m.name, i+1, len(m.programs))
		args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w " + m.ldflags, "-o", filepath.Join(temporary, "bin", p.name), p.pkg}
		if _, err := runGo(ctx, source, what, log, args...); err != nil {
			return err
		}
	}
	if err := m.copyManifests(ctx, source, filepath.Join(temporary, "manifests"), log); err != nil {
		return err
	}
	if err := os.Rename(temporary, destination); err != nil {
		return fmt.Errorf("keep build of %s: %w", m.name, err)
	}
	return nil
}

// copyManifests copies the folders the module names out of the module cache, which may be cleaned after the build.
func (m module) copyManifests(ctx context.Context, source, destination string, log io.Writer) error {
	for _, from := range m.manifests {
		// A module that is not built has not been downloaded either.
		if _, err := runGo(ctx, source, "download "+from.dependency, log, "mod", "download", from.dependency); err != nil {
			return err
		}
		dir, err := runGo(ctx, source, "find "+from.dependency, log, "list", "-m", "-f", "{{.Dir}}", from.dependency)
		if err != nil {
			return err
		}
		for _, folder := range from.folders {
			if err := copyFolder(filepath.Join(dir, folder), filepath.Join(destination, folder)); err != nil {
				return fmt.Errorf("copy %s of %s: %w", folder, from.dependency, err)
			}
		}
	}
	return nil
}

// copyFolder copies the files of one folder, not of its subfolders.
func copyFolder(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(from, entry.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, entry.Name()), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// runGo runs the go command in a module's folder and returns what it prints. A thread stays with it to the end, because
// the command is killed when the thread that started it ends.
func runGo(ctx context.Context, dir, what string, log io.Writer, args ...string) (string, error) {
	defer reportProgress(log, what)()
	var out, problems strings.Builder
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = &out, &problems
	cmd.SysProcAttr = processAttributes()
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- cmd.Run()
	}()
	if err := <-result; err != nil {
		return "", fmt.Errorf("%s: %w\n%s", what, errors.Join(ctx.Err(), err), problems.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
