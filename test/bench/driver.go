// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// startTimeout is how long the process may take until it serves.
const startTimeout = time.Minute

// driver is one `lockstep serve` on a unix socket.
type driver struct {
	*plugin.Client
	*process

	conn *grpc.ClientConn

	// answers and serves are the times from exec until the health check responded at all, and until it was SERVING.
	answers, serves time.Duration
	servingAt       time.Time
}

// startDriver starts the process and returns once its caches are synced.
func (b *bench) startDriver(ctx context.Context, args ...string) (*driver, error) {
	socket := filepath.Join(b.dir, fmt.Sprintf("s%d", time.Now().UnixNano()))
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	begin := time.Now()
	d := &driver{}
	var err error
	if d.process, err = b.spawn(append([]string{"serve", "--listen", "unix://" + socket, "--kubeconfig", b.kubeconfig}, args...)...); err != nil {
		return nil, err
	}
	if err := d.connect(ctx, begin, socket); err != nil {
		d.stop()
		return nil, fmt.Errorf("start lockstep: %w\n%s", err, d.stderr)
	}
	return d, nil
}

func (d *driver) connect(ctx context.Context, begin time.Time, socket string) (err error) {
	if err := d.awaitSocket(ctx, socket); err != nil {
		return err
	}
	if d.conn, err = grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	health := healthpb.NewHealthClient(d.conn)
	for {
		answer, err := health.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("check health: %w", err)
		}
		if d.answers == 0 {
			d.answers = time.Since(begin)
		}
		if answer.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			break
		}
		time.Sleep(time.Millisecond)
	}
	d.serves, d.servingAt = time.Since(begin), time.Now()
	d.Client, err = plugin.Dial(ctx, "unix://"+socket)
	return err
}

// awaitSocket connects repeatedly, since gRPC itself waits a second after the first refusal.
func (d *driver) awaitSocket(ctx context.Context, socket string) error {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-d.process.Exited:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("connect: %w", err)
		case <-time.After(500 * time.Microsecond):
		}
	}
}

// stop stops the process and waits for it. Calling it again has no effect.
func (d *driver) stop() {
	if d.Client != nil {
		_ = d.Close()
	}
	if d.conn != nil {
		_ = d.conn.Close()
	}
	d.process.stop()
}
