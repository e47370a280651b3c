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
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

// stopTimeout bounds the wait for a driver inside this process to stop. Its state is in the cluster, so none is lost.
const stopTimeout = 2 * time.Second

// Inside runs a driver behind a socket that only this user can access, so that a command behaves the same with and without
// --address. The driver outlives ctx until Close, so that an interrupted command can still read the status.
func Inside(ctx context.Context, o *Options, dial plugin.DialOptions) (*Link, error) {
	// A path in a new directory is free, and short enough for a socket: its limit is about a hundred bytes.
	dir, err := os.MkdirTemp("", "lockstep-")
	if err != nil {
		return nil, fmt.Errorf("create a directory for the driver's socket: %w", err)
	}
	logs := &muteable{w: o.Stderr}
	inside := *o
	inside.Stderr = logs
	command, failCommand := context.WithCancelCause(ctx)
	// The driver outlives an interrupted command, which still asks it for the status.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped, err := startInside(running, failCommand, &inside, filepath.Join(dir, "s"))
	if err != nil {
		stop()
		failCommand(nil)
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	closeAll := func() error {
		// From now on the driver's calls are canceled, which is no news for the user.
		logs.muted.Store(true)
		stop()
		select {
		case <-stopped:
		case <-time.After(stopTimeout):
		}
		return os.RemoveAll(dir)
	}
	// The server may not accept yet. Dial waits for it in place of failing.
	dial.WaitForReady = true
	client, err := plugin.Dial(command, "unix://"+filepath.Join(dir, "s"), dial)
	if err != nil {
		return nil, errors.Join(dialCause(command, err), closeAll())
	}
	return &Link{Client: client, Context: command, Close: func() error { return errors.Join(client.Close(), closeAll()) }}, nil
}

// muteable is a log that is muted while the driver stops.
type muteable struct {
	w     io.Writer
	muted atomic.Bool
}

// Write writes p, or drops it.
func (m *muteable) Write(p []byte) (int, error) {
	if m.muted.Load() {
		return len(p), nil
	}
	return m.w.Write(p) //nolint:wrapcheck // the caller's own stream
}

// startInside serves a driver until running ends or the driver fails, then calls fail with the error and closes the channel.
func startInside(running context.Context, fail context.CancelCauseFunc, o *Options, socket string) (stopped chan struct{}, err error) {
	logger, err := o.NewLogger()
	if err != nil {
		return nil, err
	}
	driver, err := o.Driver(logger)
	if err != nil {
		return nil, err
	}
	// The server has no logger: the command itself reports what its requests return.
	s, err := server.New(running, driver, server.Options{Listen: "unix://" + socket, User: o.Whoami()})
	if err != nil {
		return nil, err
	}
	if config, err := o.RESTConfig(); o.command && err == nil {
		go o.awaitReady(running, config, driver, fail)
	}
	stopped = make(chan struct{})
	go func() {
		defer close(stopped)
		// A driver that fails ends the command with its cause.
		fail(RunBeside(running, driver, s.Run))
	}()
	return stopped, nil
}

// RunBeside runs the driver beside serve, and stops it after serve has returned: calls in flight need its caches and its
// work to complete. When ctx ends, it drains the driver, so that waiting calls return. If the driver fails, serve's context
// ends.
func RunBeside(ctx context.Context, driver server.Driver, serve func(context.Context) error) error {
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	// A call that waits for a release would outlast the grace of the server.
	stopDraining := context.AfterFunc(serving, driver.Drain)
	defer stopDraining()
	// The driver has to run until the last call has returned.
	running, stopRunning := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRunning()
	ran := make(chan error, 1)
	go func() {
		// An error that comes from the stop itself is no failure.
		err := driver.Run(running)
		if err != nil && running.Err() == nil {
			err = fmt.Errorf("run driver: %w", err)
		} else {
			err = nil
		}
		ran <- err
		// Without a driver the server can't answer anything.
		stopServing()
	}()
	err := serve(serving)
	stopRunning()
	return errors.Join(err, <-ran)
}

// whoamiTimeout bounds the question. Without an answer the first calls have no user.
const whoamiTimeout = 2 * time.Second

// Whoami returns a source of the user that the API server knows the flags' kubeconfig as: that of calls to a driver inside this
// process. It asks once, at the first call.
func (o *Options) Whoami() func(context.Context) user.Info {
	var mu sync.Mutex
	var known user.Info
	return func(ctx context.Context) user.Info {
		// The lock is held during the request, so that concurrent first calls make one.
		mu.Lock()
		defer mu.Unlock()
		// Without an answer the next call asks again.
		if known == nil {
			ctx, cancel := context.WithTimeout(ctx, whoamiTimeout)
			defer cancel()
			known = o.whoami(ctx)
		}
		return known
	}
}

// whoami returns nil if the API server does not answer.
func (o *Options) whoami(ctx context.Context) user.Info {
	config, err := o.RESTConfig()
	if err != nil {
		return nil
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil
	}
	answer, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil
	}
	return &user.DefaultInfo{Name: answer.Status.UserInfo.Username}
}
