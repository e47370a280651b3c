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
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Build makes sure that the programs of a cluster with these options are in the cache. It takes minutes the first time and
// is called by [Start]; call it before to keep the build out of a test's time limit, or where the network cannot be reached
// later. Progress goes to log. Processes that build at the same time wait for one of them.
func Build(ctx context.Context, log io.Writer, opts ...Option) error {
	o, err := newOptions(opts)
	if err != nil {
		return err
	}
	return o.build(ctx, log)
}

// modules are those that the cluster needs. LWS and the CRD of KEDA may be added to one that starts without them.
func (o options) modules() []module {
	wanted := []func(Versions) module{kubernetesModule, lwsModule, kwokModule, kedaModule, batchReleaseModule}
	if o.gateway {
		wanted = append(wanted, gatewayAPIModule)
	}
	if o.traefik {
		wanted = append(wanted, traefikModule)
	}
	if o.argo {
		wanted = append(wanted, argoModule)
	}
	if o.kruise {
		wanted = append(wanted, kruiseModule)
	}
	modules := make([]module, 0, len(wanted))
	for _, m := range wanted {
		modules = append(modules, m(o.versions))
	}
	return modules
}

// build builds two modules at a time: the compiler uses all processors, but a module's downloads and its links do not.
func (o options) build(ctx context.Context, log io.Writer) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sideBySide())
	for _, m := range o.modules() {
		g.Go(func() error {
			_, err := m.build(ctx, log)
			return err
		})
	}
	return g.Wait()
}

// linkMemory is what the largest program, the API server, takes while it is linked.
const linkMemory = 4 << 30

// sideBySide returns how many modules to build at a time: two, or one where the memory is short.
func sideBySide() int {
	if memoryAvailable() < 2*linkMemory {
		return 1
	}
	return 2
}

// build returns the programs of one of the cluster's modules.
func (c *Cluster) build(ctx context.Context, of func(Versions) module) (build, error) {
	return of(c.options.versions).build(ctx, c.options.log)
}

// build returns the module's programs, from the cache if they are there.
func (m module) build(ctx context.Context, log io.Writer) (build, error) {
	source, err := m.folder()
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

// noDebugInformation saves the compiler a quarter of its time (measured: 48 instead of 64 s for the API's types and what they need). The
// linker would strip it. The Makefile has the same flag: what Lockstep and these programs share is compiled once.
const noDebugInformation = "-gcflags=all=-dwarf=false"

// compile builds all programs into the folder bin below work, with one call of the go command, which links one while it
// compiles the next.
func (m module) compile(ctx context.Context, source, work string, log io.Writer) error {
	if len(m.programs) == 0 {
		return nil
	}
	sources, err := os.MkdirTemp(work, "sources-")
	if err != nil {
		return fmt.Errorf("create folder for sources: %w", err)
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
	all, err := runGo(ctx, source, fmt.Sprintf("download what %s needs", m), log, append([]string{"list", "-modfile=" + modFile, "-deps"}, packages...)...)
	if err != nil {
		return err
	}
	bin, compiled := filepath.Join(work, "bin"), &compileLog{}
	total := strings.Count(all, "\n") + 1
	what := func() string {
		return fmt.Sprintf("build %s: %d of at most %d packages", m, compiled.packages(), total)
	}
	args := append([]string{"build", "-v", "-modfile=" + modFile, "-trimpath", "-buildvcs=false", noDebugInformation,
		"-ldflags", "-s -w " + m.ldflags, "-o", bin + "/"}, packages...)
	if _, err := goCommand(ctx, source, what, log, compiled, args...); err != nil {
		return fmt.Errorf("build %s: %w\n%s", m, err, compiled.problems())
	}
	for _, p := range m.programs {
		if err := os.Rename(filepath.Join(bin, executable(p.pkg)), filepath.Join(bin, p.name)); err != nil {
			return fmt.Errorf("name program %s of %s: %w", p.name, m, err)
		}
	}
	return nil
}

// majorVersion is the last element of an import path that only names a major version.
var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// executable is how the go command calls the program of a package.
func executable(pkg string) string {
	if majorVersion.MatchString(path.Base(pkg)) {
		pkg = path.Dir(pkg)
	}
	return path.Base(pkg)
}

func (m module) String() string { return m.name + " " + m.version }

// copyManifests copies the folders the module names out of the module cache, which may be cleaned after the build.
func (m module) copyManifests(ctx context.Context, source, destination string, log io.Writer) error {
	for _, from := range m.manifests {
		dir, err := moduleDir(ctx, source, from.dependency, log)
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

// runGo runs the go command in a module's folder and returns what it prints.
func runGo(ctx context.Context, dir, what string, log io.Writer, args ...string) (string, error) {
	var problems strings.Builder
	out, err := goCommand(ctx, dir, func() string { return what }, log, &problems, args...)
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", what, err, problems.String())
	}
	return out, nil
}

// goCommand is runGo with a description that changes and a writer for standard error. A thread stays with the command to the
// end, because it is killed when the thread that started it ends.
func goCommand(ctx context.Context, dir string, what func() string, log, stderr io.Writer, args ...string) (string, error) {
	defer reportProgress(log, what)()
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0",
		// Some versions want a newer Go than the machine has: the go command gets it as it gets modules.
		"GOTOOLCHAIN=auto")
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

// compileLog is what `go build -v` writes to standard error: a line per package that it compiles, and problems.
type compileLog struct {
	mu    sync.Mutex
	count int
	other strings.Builder
}

// Write takes whole lines: the go command writes no others.
func (l *compileLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		// An import path is a word; a problem, or a download, is a sentence.
		if strings.ContainsAny(line, " \t") {
			l.other.WriteString(line)
		} else {
			l.count++
		}
	}
	return len(p), nil
}

func (l *compileLog) packages() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *compileLog) problems() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.other.String()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
