package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/child"
)

// process is a running child.
type process struct {
	*child.Process
	name    string
	logPath string
	// stopping is set before we end the child ourselves.
	stopping atomic.Bool
}

// spawn starts a child whose output is added to the file at logPath. The child runs in dir.
func spawn(name, logPath, dir, path string, args, env []string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	// There is more memory than processor time: a tenth of a control plane's would go into collecting garbage.
	cmd.Env = append(append(os.Environ(), "GOGC=300"), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = processAttributes()
	p, err := child.Run(cmd)
	return &process{Process: p, name: name, logPath: logPath}, err
}

// stop asks the child to end, kills it when that takes too long or hurry is closed, and returns when it is gone.
func (p *process) stop(hurry <-chan struct{}) {
	p.stopping.Store(true)
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.Exited:
		return
	case <-hurry:
	case <-time.After(stopGrace):
	}
	_ = p.Cmd.Process.Kill()
	<-p.Exited
}

// pause and resume stop the child's clock without ending it: connections stay open and are not answered.
func (p *process) pause() error  { return p.Cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.Cmd.Process.Signal(syscall.SIGCONT) }

// death describes a child that ended without being asked to.
func (p *process) death() error {
	how := "exit status 0"
	if p.Err != nil {
		how = p.Err.Error()
	}
	return fmt.Errorf("%s ended unexpectedly (%s); log %s ends with:\n%s", p.name, how, p.logPath, tail(p.logPath))
}

// await calls probe until it succeeds. It gives up when the child ends or ctx does.
func (p *process) await(ctx context.Context, probe func(context.Context) error) error {
	var last error
	for {
		if last = probe(ctx); last == nil {
			return nil
		}
		select {
		case <-p.Exited:
			return p.death()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; log %s ends with:\n%s", p.name, errors.Join(ctx.Err(), last), p.logPath, tail(p.logPath))
		case <-time.After(25 * time.Millisecond):
		}
	}
}

// tail returns the last lines of a log, at most 4 KiB.
func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if n := len(content) - 4096; n > 0 {
		content = content[n:]
		if _, rest, found := strings.Cut(string(content), "\n"); found {
			return rest
		}
	}
	return string(content)
}
