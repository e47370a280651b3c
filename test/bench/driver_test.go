// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

const (
	// startTimeout is how long the process may take until it serves.
	startTimeout = time.Minute
	mb           = 1 << 20
)

// server is one `lockstep serve` on a unix socket. Unlike that of the suites it records no decisions, which would cost what is measured.
type server struct {
	*plugin.Client
	*child.Process

	stderr *text.Buffer
	conn   *grpc.ClientConn

	// answers and serves are the times from exec until the health check responded at all, and until it was SERVING.
	answers, serves time.Duration
	servingAt       time.Time
}

// serve is start for the benchmark's own goroutine.
func (b *bench) serve(args ...string) *server {
	b.Helper()
	s, err := b.start(args...)
	b.must(err)
	return s
}

// start starts the process and returns once its caches are synced. It ends with the part at the latest.
func (b *bench) start(args ...string) (*server, error) {
	binary, err := driver.Binary()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(b.cluster.Dir(), fmt.Sprintf("s%d", time.Now().UnixNano()))
	cmd := exec.Command(binary, append([]string{"serve", "--listen", "unix://" + socket, "--kubeconfig", b.kubeconfig}, args...)...)
	s := &server{stderr: &text.Buffer{}}
	// The garbage collector's own trace is the only way to learn the live heap of another process exactly.
	cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1")
	cmd.Stderr = s.stderr
	begin := time.Now()
	if s.Process, err = child.Run(cmd); err != nil {
		return nil, err
	}
	b.Cleanup(s.stop)
	ctx, cancel := context.WithTimeout(b.ctx, startTimeout)
	defer cancel()
	if err := s.connect(ctx, begin, socket); err != nil {
		return nil, fmt.Errorf("start lockstep: %w\n%s", err, s.stderr)
	}
	return s, nil
}

func (s *server) connect(ctx context.Context, begin time.Time, socket string) (err error) {
	if err := s.awaitSocket(ctx, socket); err != nil {
		return err
	}
	if s.conn, err = grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	health := healthpb.NewHealthClient(s.conn)
	for {
		answer, err := health.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("check health: %w", err)
		}
		if s.answers == 0 {
			s.answers = time.Since(begin)
		}
		if answer.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.serves, s.servingAt = time.Since(begin), time.Now()
	s.Client, err = plugin.Dial(ctx, "unix://"+socket, plugin.DialOptions{})
	return err
}

// awaitSocket connects repeatedly, since gRPC itself waits a second after the first refusal.
func (s *server) awaitSocket(ctx context.Context, socket string) error {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-s.Process.Exited:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("connect: %w", err)
		case <-time.After(500 * time.Microsecond):
		}
	}
}

// stop stops the process and waits for it. Calling it again has no effect.
func (s *server) stop() {
	if s.Client != nil {
		_ = s.Close()
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.End(syscall.SIGTERM, 10*time.Second)
}

// memory returns that of the process in MB: resident, and its peak.
func (s *server) memory() (resident, peak float64) {
	now, most := s.Memory()
	return float64(now) / mb, float64(most) / mb
}

// read has the driver answer with a workload's groups.
func (s *server) read(ctx context.Context, name string) error {
	ref := &pb.WorkloadRef{Namespace: namespace, Name: name}
	_, err := s.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: ref, IncludeGroups: true})
	return err
}

// liveHeap reads a workload until the driver has collected garbage twice, and returns the second live heap, in MB.
func (b *bench) liveHeap(s *server, name string) float64 {
	b.Helper()
	before, _ := s.collections()
	for {
		if now, live := s.collections(); now >= before+2 {
			return live
		}
		b.must(s.read(b.ctx, name))
	}
}

// gcLine is one collection: its number and the heap before, after and live, in MB.
var gcLine = regexp.MustCompile(`(?m)^gc (\d+) @.* \d+->\d+->(\d+) MB`)

// collections returns the number of garbage collections, and the live heap of the last one, in MB.
func (s *server) collections() (n int, live float64) {
	all := gcLine.FindAllStringSubmatch(s.stderr.String(), -1)
	if len(all) == 0 {
		return 0, 0
	}
	last := all[len(all)-1]
	n, _ = strconv.Atoi(last[1])
	live, _ = strconv.ParseFloat(last[2], 64)
	return n, live
}
