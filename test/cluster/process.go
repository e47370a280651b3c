// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

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
	// stopping is set before the child is stopped.
	stopping atomic.Bool
}

// spawn starts a child in dir, whose output is appended to the file at logPath.
func spawn(name, logPath, dir, path string, args, env []string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	// Trade memory for processor time, a tenth of which would be garbage collection.
	cmd.Env = append(append(os.Environ(), "GOGC=300"), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = processAttributes()
	p, err := child.Run(cmd)
	return &process{Process: p, name: name, logPath: logPath}, err
}

// stop sends SIGTERM, kills the child after the grace period or when hurry is closed, and returns when it has exited.
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

// death returns the error of a child that exited by itself.
func (p *process) death() error {
	how := "exit status 0"
	if p.Err != nil {
		how = p.Err.Error()
	}
	return fmt.Errorf("%s exited unexpectedly (%s); log %s ends with:\n%s", p.name, how, p.logPath, tail(p.logPath))
}

// await calls probe until it succeeds, the child exits or ctx ends.
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
