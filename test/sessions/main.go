// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sessions records the terminal sessions in docs/images. It runs the commands of
// docs/tutorial.md on a real control plane of its own:
//
//	make images
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/terminal"
)

// patience is how long all of it may take, with programs that have been built before. Far less is normal.
const patience = 10 * time.Minute

func main() {
	lockstep := flag.String("lockstep", "../bin/lockstep", "the lockstep binary")
	images := flag.String("images", "../docs/images", "the directory to write to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, patience)
	err := run(ctx, *lockstep, *images)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sessions:", err)
		os.Exit(1)
	}
}

// recorder runs commands against one cluster, and writes what they show.
type recorder struct {
	images string
	// env has the KUBECONFIG of all commands, and a PATH with the binary under test.
	env []string
}

func run(ctx context.Context, lockstep, images string) error {
	c, err := cluster.Start(ctx, cluster.WithLog(os.Stderr))
	if err != nil {
		return fmt.Errorf("start a control plane: %w", err)
	}
	defer c.Stop()
	kubectl, err := c.Kubectl(ctx)
	if err != nil {
		return fmt.Errorf("build kubectl: %w", err)
	}
	if lockstep, err = filepath.Abs(lockstep); err != nil {
		return fmt.Errorf("find lockstep: %w", err)
	}
	path := strings.Join([]string{filepath.Dir(lockstep), filepath.Dir(kubectl), os.Getenv("PATH")}, ":")
	r := recorder{images: images, env: []string{"KUBECONFIG=" + c.Kubeconfig(), "PATH=" + path}}
	if err := r.shell(ctx, `
		kubectl apply -f examples/tutorial.yaml
		kubectl wait --for=condition=Available leaderworkerset/vllm --timeout=2m
		lockstep adopt vllm
		sed s/vllm:v1/vllm:v2/ examples/tutorial.yaml | kubectl apply -f -`); err != nil {
		return err
	}
	if err := r.session(ctx, "plan", "lockstep plan vllm"); err != nil {
		return err
	}
	if err := r.canary(ctx); err != nil {
		return err
	}
	if err := r.shell(ctx, `
		sed -e s/vllm:v1/vllm:v3/ -e 's/startup: 3s/behavior: image-pull/' examples/tutorial.yaml | kubectl apply -f -`); err != nil {
		return err
	}
	return r.session(ctx, "abort", "lockstep release vllm --progress-deadline 10s", "lockstep abort vllm")
}

// canary records a release, and lockstep watch during its canary.
func (r recorder) canary(ctx context.Context) error {
	watch, err := r.open(ctx, "lockstep watch vllm", 110, 34)
	if err != nil {
		return err
	}
	defer watch.Close()
	recorded := make(chan error, 1)
	go func() {
		_, err := watch.Await(ctx, func(text string) bool {
			return strings.Contains(text, "1/1 (1): 0/1 groups ready") && strings.Contains(text, "Starting")
		})
		if err != nil {
			recorded <- fmt.Errorf("watch the canary: %w", err)
			return
		}
		recorded <- r.write(ctx, "watch", watch.ANSI())
	}()
	if err := r.session(ctx, "release", "lockstep release vllm --pause 5s"); err != nil {
		return err
	}
	return <-recorded
}

// session records commands that a user types one after the other. Their exit codes are part of what is shown.
func (r recorder) session(ctx context.Context, name string, lines ...string) error {
	var all bytes.Buffer
	for _, line := range lines {
		screen, err := r.open(ctx, line, 120, 60)
		if err != nil {
			return err
		}
		err = screen.Wait(ctx)
		fmt.Fprintf(&all, "\x1b[1m$ %s\x1b[0m\n%s\n", line, screen.ANSI())
		screen.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return r.write(ctx, name, all.String())
}

// write renders what a terminal showed.
func (r recorder) write(ctx context.Context, name, shown string) error {
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=../tools/freeze/go.mod", "freeze", "--language", "ansi",
		"--font.family", "monospace", "--padding", "16", "--output", filepath.Join(r.images, "session-"+name+".svg"))
	cmd.Stdin = strings.NewReader(shown)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("render session %s: %w\n%s", name, err, out)
	}
	return nil
}

// shell runs commands that are not shown.
func (r recorder) shell(ctx context.Context, script string) error {
	if out, err := r.command(ctx, script).CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w\n%s", strings.TrimSpace(script), err, out)
	}
	return nil
}

func (r recorder) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = ".." // commands name files of the repository
	cmd.Env = append(os.Environ(), r.env...)
	return cmd
}

// open runs a command on a terminal.
func (r recorder) open(ctx context.Context, line string, width, height int) (*terminal.Screen, error) {
	cmd := r.command(ctx, line)
	cmd.Env = r.env // beside that of a terminal
	screen, err := terminal.Open(cmd, width, height)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", line, err)
	}
	return screen, nil
}
