// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

// stopTimeout bounds the wait for a driver inside this process to stop. All that it must not lose is in the cluster.
const stopTimeout = 2 * time.Second

// stopGrace is how long a process that is ending waits for its driver. Whatever the driver was doing is durable and
// goes on in the next one; client-go may sleep through the end of its context for a second and more while the API
// server is away, and go-plugin kills a plugin that takes two.
const stopGrace = 500 * time.Millisecond

// Inside runs the driver behind a socket that only this user can reach, so that a command behaves the same with
// and without --address. The driver outlives ctx until the link is closed, so that a command which was interrupted can
// still find out where the release stands.
func Inside(ctx context.Context, o *Options) (*Link, error) {
	dir, err := os.MkdirTemp("", "lockstep-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the driver's socket: %w", err)
	}
	logs := &hushable{w: o.Stderr}
	inside := *o
	inside.Stderr = logs
	command, failCommand := context.WithCancelCause(ctx)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped, err := startInside(running, failCommand, &inside, filepath.Join(dir, "s"))
	if err != nil {
		stop()
		failCommand(nil)
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	closeAll := func() error {
		logs.hush()
		stop()
		select {
		case <-stopped:
		case <-time.After(stopTimeout):
		}
		return os.RemoveAll(dir)
	}
	client, err := plugin.Dial(command, "unix://"+filepath.Join(dir, "s"), plugin.WithWaitForReady())
	if err != nil {
		return nil, errors.Join(cause(command, err), closeAll())
	}
	return &Link{Client: client, Context: command, Close: func() error { return errors.Join(client.Close(), closeAll()) }}, nil
}

// hushable passes log lines on until it is hushed: what breaks because the command is over is nobody's trouble.
type hushable struct {
	w      io.Writer
	hushed atomic.Bool
}

func (h *hushable) hush() { h.hushed.Store(true) }

// Write writes p, or drops it.
func (h *hushable) Write(p []byte) (int, error) {
	if h.hushed.Load() {
		return len(p), nil
	}
	return h.w.Write(p) //nolint:wrapcheck // The caller's own stream.
}

// startInside serves a driver until running ends, and calls fail when that is over. The channel is closed when all has
// stopped.
func startInside(
	running context.Context, fail context.CancelCauseFunc, o *Options, socket string,
) (stopped chan struct{}, err error) {
	logger, err := o.NewLogger()
	if err != nil {
		return nil, err
	}
	driver, err := o.Driver(logger)
	if err != nil {
		return nil, err
	}
	// The server has no logger: what it would log about requests is what the command says itself.
	s, err := server.New(running, driver, server.Options{Listen: "unix://" + socket})
	if err != nil {
		return nil, err
	}
	stopped = make(chan struct{})
	go func() {
		defer close(stopped)
		fail(RunBeside(running, driver, s.Run))
	}()
	return stopped, nil
}

// RunBeside runs serve and, beside it, the driver, which it ends once serve has returned: calls in flight need its caches
// and its work to come to their end. What only waits is told to stop as soon as ctx has ended. If the driver fails, serve
// ends too.
func RunBeside(ctx context.Context, driver server.Driver, serve func(context.Context) error) error {
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	stopDraining := context.AfterFunc(serving, driver.Drain)
	defer stopDraining()
	running, stopRunning := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRunning()
	ran := make(chan error, 1)
	go func() {
		err := within(stopGrace, driver.Run)(running)
		if err != nil && running.Err() == nil {
			err = fmt.Errorf("run driver: %w", err)
		} else {
			err = nil
		}
		ran <- err
		stopServing()
	}()
	err := serve(serving)
	stopRunning()
	return errors.Join(err, <-ran)
}

// within returns run, but for the process that ends: it returns nil once ctx has ended for the grace, although run
// still runs.
func within(grace time.Duration, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ran := make(chan error, 1)
		go func() { ran <- run(ctx) }()
		select {
		case err := <-ran:
			return err
		case <-ctx.Done():
		}
		select {
		case err := <-ran:
			return err
		case <-time.After(grace):
			return nil
		}
	}
}
