// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/test/child"
)

// startTimeout is how long the process may take until it serves.
const startTimeout = time.Minute

// driver is one `lockstep serve` on a unix socket.
type driver struct {
	*plugin.Client

	cmd    *exec.Cmd
	conn   *grpc.ClientConn
	exited chan struct{}
	stderr *tail

	// answers and serves are the times from exec until health answered at all, and until it said SERVING.
	answers, serves time.Duration
	servingAt       time.Time
}

// startDriver starts the process and returns once its caches are filled.
func (b *bench) startDriver(ctx context.Context) (*driver, error) {
	socket := filepath.Join(b.dir, fmt.Sprintf("s%d", time.Now().UnixNano()))
	d := &driver{exited: make(chan struct{}), stderr: &tail{}}
	d.cmd = exec.Command(b.binary, "serve", "--listen", "unix://"+socket, "--kubeconfig", b.kubeconfig)
	// The garbage collector's own trace is the only way to learn the live heap of another process exactly.
	d.cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1")
	d.cmd.Stderr = d.stderr
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	begin := time.Now()
	if err := child.Start(d.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.exited)
	}()
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

// awaitSocket connects over and over, since gRPC itself would wait a second after the first refusal.
func (d *driver) awaitSocket(ctx context.Context, socket string) error {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-d.exited:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("connect: %w", err)
		case <-time.After(500 * time.Microsecond):
		}
	}
}

// stop ends the process and returns when it is gone. Calling it again does nothing.
func (d *driver) stop() {
	if d.Client != nil {
		_ = d.Close()
	}
	if d.conn != nil {
		_ = d.conn.Close()
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(10 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
}

// memory is the process's, in bytes, as the kernel counts it: what is resident, the most that ever was, and the part of
// the former that is not its own binary's file.
func (d *driver) memory() (resident, peak, private int64, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read memory of lockstep: %w", err)
	}
	return statusBytes(raw, "VmRSS"), statusBytes(raw, "VmHWM"), statusBytes(raw, "RssAnon"), nil
}

func statusBytes(raw []byte, key string) int64 {
	match := regexp.MustCompile(`(?m)^` + key + `:\s+(\d+) kB$`).FindSubmatch(raw)
	if match == nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(match[1]), 10, 64)
	return n << 10
}

// busy is the CPU time that the process has used.
func (d *driver) busy() (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read CPU time of lockstep: %w", err)
	}
	// The fields after the name, which is in parentheses: utime and stime are the 12th and 13th, in hundredths of a second.
	_, rest, _ := bytes.Cut(raw, []byte(") "))
	fields := bytes.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read CPU time of lockstep: unexpected %q", raw)
	}
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}

// gcLine is one collection: its number and the heap before, after and live, in MB.
var gcLine = regexp.MustCompile(`(?m)^gc (\d+) @.* (\d+)->(\d+)->(\d+) MB`)

// collections is how many times the process has collected garbage, and what was live at the last one, in bytes.
func (d *driver) collections() (n int, live int64) {
	all := gcLine.FindAllStringSubmatch(d.stderr.String(), -1)
	if len(all) == 0 {
		return 0, 0
	}
	last := all[len(all)-1]
	n, _ = strconv.Atoi(last[1])
	mb, _ := strconv.ParseInt(last[4], 10, 64)
	return n, mb << 20
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if n := t.buf.Len() - tailSize; n > 0 {
		t.buf.Next(n)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
