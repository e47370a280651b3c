// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

// stopTimeout bounds the wait for a driver inside this process to stop. All that it must not lose is in the cluster.
const stopTimeout = 2 * time.Second

// dialRetry is the pause between two attempts to reach a driver at an address.
const dialRetry = 2 * time.Second

const (
	// longestRedial is the longest pause between two attempts to find again a driver that was lost.
	longestRedial = 5 * time.Second
	// connectTimeout is how long one of them may take.
	connectTimeout = 20 * time.Second
)

// dialFlags say which driver a command talks to.
type dialFlags struct {
	address                string
	tlsCert, tlsKey, tlsCA string
}

func (f *dialFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.address, "address", "",
		"driver to use: unix:///path or host:port (default: one inside this process, with this kubeconfig and for this workload only)")
	flags.StringVar(&f.tlsCert, "tls-cert", "", "with --address: PEM file with the client's certificate chain")
	flags.StringVar(&f.tlsKey, "tls-key", "", "with --address: PEM file with its key")
	flags.StringVar(&f.tlsCA, "tls-ca", "", "with --address: PEM file with the CA that the server's certificate must come from")
}

// addAsDriver adds the flags under the names that hosts have for them.
func (f *dialFlags) addAsDriver(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "driver", "",
		"driver to use: unix:///path, host:port or dns:///host:port (default: one inside this process)")
	flags.StringVar(&f.tlsCert, "tls-cert", "", "with --driver: PEM file with the client's certificate chain")
	flags.StringVar(&f.tlsKey, "tls-key", "", "with --driver: PEM file with its key")
	flags.StringVar(&f.tlsCA, "tls-ca", "", "with --driver: PEM file with the CA that the server's certificate must come from")
}

// checkAsDriver is check for a host, which says --driver for --address.
func (f *dialFlags) checkAsDriver() error {
	if err := f.check(); err != nil {
		return fmt.Errorf("%w (--address is --driver here)", err)
	}
	return nil
}

// check refuses combinations that can't work.
func (f *dialFlags) check() error {
	given := 0
	for _, file := range []string{f.tlsCert, f.tlsKey, f.tlsCA} {
		if file != "" {
			given++
		}
	}
	switch {
	case given != 0 && given != 3:
		return usageErrorf("mutual TLS needs all three of --tls-cert, --tls-key and --tls-ca")
	case given != 0 && f.address == "":
		return usageErrorf("--tls-cert, --tls-key and --tls-ca need --address")
	default:
		return nil
	}
}

// link is a connection to a driver.
type link struct {
	*plugin.Client

	// ctx ends with the command, and when a driver inside this process fails; context.Cause says why.
	ctx context.Context //nolint:containedctx // It is handed to one command, which uses it at once.
	// close ends the connection, and the driver if it is inside this process.
	close func() error
}

// connect dials, or starts a driver inside this process and dials that.
func (f *dialFlags) connect(ctx context.Context, o *options) (*link, error) {
	if f.address == "" {
		return connectInside(ctx, o)
	}
	// What restarts is looked for more often than every two minutes, gRPC's own limit.
	backoffs := backoff.DefaultConfig
	backoffs.MaxDelay = longestRedial
	opts := []plugin.Option{plugin.WithDialOptions(grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoffs, MinConnectTimeout: connectTimeout,
	}))}
	if f.tlsCert != "" {
		opts = append(opts, plugin.WithTLS(f.tlsCert, f.tlsKey, f.tlsCA))
	}
	client, err := plugin.Dial(ctx, f.address, opts...)
	if err != nil {
		return nil, err
	}
	return &link{Client: client, ctx: ctx, close: client.Close}, nil
}

// dialUntilReached dials until the driver is there, and tells of each failure. Nil: ctx ended first.
func (f *dialFlags) dialUntilReached(ctx context.Context, logger *slog.Logger, failed func(error)) *link {
	for ctx.Err() == nil {
		link, err := f.connect(ctx, nil)
		if err == nil {
			logger.Info("driver reached", "address", f.address, "name", link.Info().GetName(), "version", link.Info().GetVersion())
			return link
		}
		failed(err)
		logger.Warn("driver not reached, trying again", "address", f.address, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(dialRetry):
		}
	}
	return nil
}

// connectInside runs the driver behind a socket that only this user can reach, so that a command behaves the same with
// and without --address. The driver outlives ctx until the link is closed, so that a command which was interrupted can
// still find out where the release stands.
func connectInside(ctx context.Context, o *options) (*link, error) {
	dir, err := os.MkdirTemp("", "lockstep-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the driver's socket: %w", err)
	}
	logs := &hushable{w: o.stderr}
	inside := *o
	inside.stderr = logs
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
	return &link{Client: client, ctx: command, close: func() error { return errors.Join(client.Close(), closeAll()) }}, nil
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
	running context.Context, fail context.CancelCauseFunc, o *options, socket string,
) (stopped chan struct{}, err error) {
	logger, err := o.logger()
	if err != nil {
		return nil, err
	}
	driver, err := o.driver(logger, nil)
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
		fail(runBeside(running, driver, s.Run))
	}()
	return stopped, nil
}
