// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Build builds the programs of a cluster with these options into the cache. The first time takes minutes. [Start] calls it; call it
// before to keep the build out of a test's time limit, or if the network is not reachable later. It logs progress. Of processes that
// build concurrently one builds, and the others wait.
func Build(ctx context.Context, log io.Writer, opts ...Option) error {
	o, err := newOptions(opts)
	if err != nil {
		return err
	}
	return o.build(ctx, log)
}

// modules returns the modules that the cluster needs. LWS and KEDA's CRD are always included, since they may be installed later.
func (o options) modules() []module {
	wanted := []func(Versions) module{kubernetesModule, lwsModule, kwokModule, kedaModule, batchReleaseModule}
	if o.kubelets > 0 {
		wanted = append(wanted, nodeModule, containerdModule, runcModule, cniModule, dnsModule)
	}
	if o.gateway {
		wanted = append(wanted, gatewayAPIModule)
	}
	if o.traefik {
		wanted = append(wanted, traefikModule)
	}
	if o.picker {
		wanted = append(wanted, pickerModule)
	}
	if o.argo {
		wanted = append(wanted, argoModule)
	}
	if o.kruise {
		wanted = append(wanted, kruiseModule)
	}
	if o.prometheus {
		wanted = append(wanted, prometheusModule, prometheusOperatorModule)
	}
	if o.installers {
		wanted = append(wanted, kubectlModule, helmModule)
	}
	modules := make([]module, 0, len(wanted))
	for _, m := range wanted {
		modules = append(modules, m(o.versions))
	}
	return modules
}

// build builds two modules concurrently: compilation uses all processors, but downloads and linking do not.
func (o options) build(ctx context.Context, log io.Writer) error {
	if o.kubelets > 0 {
		if err := installPackages(ctx, log); err != nil {
			return err
		}
	}
	o.explainPrebuilt(log)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency())
	for _, m := range o.modules() {
		g.Go(func() error {
			_, err := o.obtain(ctx, m, log)
			return err
		})
	}
	return g.Wait()
}

// linkMemory is the memory to link the API server, the largest program.
const linkMemory = 4 << 30

// concurrency returns the number of modules to build concurrently: two if there is enough memory.
func concurrency() int {
	if memoryAvailable() < 2*linkMemory {
		return 1
	}
	return 2
}

// build returns the programs of a module.
func (c *Cluster) build(ctx context.Context, of func(Versions) module) (build, error) {
	return c.options.obtain(ctx, of(c.options.versions), c.options.log)
}

// program returns the path of a program of a module.
func (c *Cluster) program(ctx context.Context, of func(Versions) module, name string) (string, error) {
	built, err := c.build(ctx, of)
	return built.program(name), err
}

// build returns the module's programs, which it builds unless they are in the cache.
func (m module) build(ctx context.Context, log io.Writer) (build, error) {
	done, source, err := m.cached()
	if err != nil || exists(done.dir) {
		return done, err
	}
	unlock, err := lockFile(ctx, filepath.Join(filepath.Dir(done.dir), "lock"), log)
	if err != nil {
		return build{}, err
	}
	defer unlock()
	if exists(done.dir) {
		return done, nil
	}
	return done, m.buildInto(ctx, source, done.dir, log)
}

// cached returns the module's place in the cache, whose directory exists once it is built, and the module's source.
func (m module) cached() (done build, source string, err error) {
	if source, err = m.folder(); err != nil {
		return build{}, "", err
	}
	key, err := m.cacheKey(source, hostPlatform())
	if err != nil {
		return build{}, "", err
	}
	root, err := cacheRoot()
	if err != nil {
		return build{}, "", err
	}
	return build{dir: filepath.Join(root, m.name, key)}, source, nil
}

// buildInto builds into a temporary directory and renames it, so that the destination is complete or absent.
func (m module) buildInto(ctx context.Context, source, destination string, log io.Writer) error {
	temporary, err := os.MkdirTemp(filepath.Dir(destination), ".building-")
	if err != nil {
		return fmt.Errorf("create build directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	if err := m.fetch(ctx, filepath.Join(temporary, "bin"), log); err != nil {
		return err
	}
	if err := m.compile(ctx, source, temporary, log); err != nil {
		return err
	}
	if err := m.copyManifests(ctx, source, filepath.Join(temporary, "manifests"), log); err != nil {
		return err
	}
	if err := os.Rename(temporary, destination); err != nil {
		return fmt.Errorf("keep build of %s: %w", m, err)
	}
	return nil
}

// compilerFlags save a third of the compiler's time: debug information takes a quarter, and the linker would strip it. Inlining takes a tenth
// (measured: 484 instead of 544 s of CPU for the API server and the controllers), and without it a suite takes no more CPU. The Makefile has the
// same flags, so that shared packages are compiled once.
var compilerFlags = []string{"-gcflags=all=-dwarf=false -l", "-gcflags=std=-dwarf=false"}

// quickCompiler has the compiler collect its garbage less often, for at most 250 MB more (measured: 45 instead of 60 s for the same packages).
const quickCompiler = "GOGC=400"

// compile builds all programs into the directory bin below work, with one go command, which links one while it compiles the next.
func (m module) compile(ctx context.Context, source, work string, log io.Writer) error {
	if len(m.programs) == 0 {
		return nil
	}
	sources, err := os.MkdirTemp(work, "sources-")
	if err != nil {
		return fmt.Errorf("create directory for sources: %w", err)
	}
	defer func() { _ = os.RemoveAll(sources) }()
	modFile, err := m.trimmed(ctx, source, sources, log)
	if err != nil {
		return err
	}
	packages := make([]string, 0, len(m.programs))
	for _, p := range m.programs {
		packages = append(packages, p.pkg)
	}
	bin, messages := filepath.Join(work, "bin"), &strings.Builder{}
	args := slices.Concat([]string{"build", "-modfile=" + modFile, "-trimpath", "-buildvcs=false", "-tags=" + m.tags}, compilerFlags,
		[]string{"-ldflags", "-s -w " + m.ldflags, "-o", bin + "/"}, packages)
	if _, err := goCommand(ctx, source, m.environment(), fmt.Sprintf("build %s", m), log, messages, args...); err != nil {
		return fmt.Errorf("build %s: %w\n%s", m, err, messages)
	}
	for _, p := range m.programs {
		if err := os.Rename(filepath.Join(bin, executable(p.pkg)), filepath.Join(bin, p.name)); err != nil {
			return fmt.Errorf("rename program %s of %s: %w", p.name, m, err)
		}
	}
	return nil
}

// majorVersion matches the last element of an import path if it is a major version.
var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// executable returns the go command's name of a package's program.
func executable(pkg string) string {
	if majorVersion.MatchString(path.Base(pkg)) {
		pkg = path.Dir(pkg)
	}
	return path.Base(pkg)
}

func (m module) String() string { return m.name + " " + m.version }

// copyManifests copies the module's directories of manifests from the module cache, which may be cleaned after the build.
func (m module) copyManifests(ctx context.Context, source, destination string, log io.Writer) error {
	for _, from := range m.manifests {
		dir, err := moduleDir(ctx, source, from.dependency, log)
		if err != nil {
			return err
		}
		for _, folder := range from.folders {
			if err := os.CopyFS(filepath.Join(destination, folder), os.DirFS(filepath.Join(dir, folder))); err != nil {
				return fmt.Errorf("copy %s of %s: %w", folder, from.dependency, err)
			}
		}
	}
	return nil
}

// runGo runs the go command in a module's directory and returns its output.
func runGo(ctx context.Context, dir, what string, log io.Writer, args ...string) (string, error) {
	var stderr strings.Builder
	out, err := goCommand(ctx, dir, nil, what, log, &stderr, args...)
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", what, err, stderr.String())
	}
	return out, nil
}

// goCommand is runGo with an environment and a writer for standard error. The thread that starts the command waits for
// it, because the kernel kills the command when that thread ends.
func goCommand(ctx context.Context, dir string, env []string, what string, log, stderr io.Writer, args ...string) (string, error) {
	defer reportProgress(log, func() string { return what })()
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0", quickCompiler,
		// Some versions want a newer Go than the machine has: the go command gets it as it gets modules.
		"GOTOOLCHAIN=auto")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &out, stderr
	cmd.SysProcAttr = processAttributes()
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- cmd.Run()
	}()
	if err := <-result; err != nil {
		return "", errors.Join(ctx.Err(), err)
	}
	return strings.TrimSpace(out.String()), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
