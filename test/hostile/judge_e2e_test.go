// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hostile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// Deadlines of what goes on during an attack.
const (
	callDeadline    = 5 * time.Second
	connectDeadline = 10 * time.Second
	stepDeadline    = time.Minute
	// The defaults of the kubelet, which restarts a pod after a row of failures.
	probeDeadline = time.Second
	probeFailures = 3
)

// tally counts attempts of one kind.
type tally struct {
	mu            sync.Mutex
	tried, failed int
	// row is how many of the last attempts have failed one after the other, longest the longest such row.
	row, longest int
	worst        time.Duration
	err          error
}

// try makes an attempt within a deadline.
func (y *tally) try(ctx context.Context, deadline time.Duration, attempt func(context.Context) error) {
	attemptCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadline)
	defer cancel()
	began := time.Now()
	err := attempt(attemptCtx)
	y.mu.Lock()
	defer y.mu.Unlock()
	y.tried++
	y.worst = max(y.worst, time.Since(began))
	if y.row++; err == nil {
		y.row = 0
		return
	}
	y.failed++
	y.err = err
	y.longest = max(y.longest, y.row)
}

func (y *tally) String() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	return fmt.Sprintf("%d of %d failed, worst %s", y.failed, y.tried, y.worst.Round(time.Millisecond))
}

// verdict is what a driver did during an attack.
type verdict struct {
	calls, connections, probes, steps tally
	peak                              int64
	killed                            bool
	logged                            int64
	cpu                               time.Duration
	// did is what the attacker achieved.
	did string
}

// repeat calls f in intervals until ctx ends.
func repeat(ctx context.Context, group *sync.WaitGroup, interval time.Duration, f func()) {
	group.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for ctx.Err() == nil {
			f()
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
}

// observe calls as an administrator, probes, and releases a workload again and again, until ctx ends.
func (w *world) observe(ctx context.Context, client *plugin.Client, connect func(context.Context) (*plugin.Client, error)) *verdict {
	v := &verdict{}
	var group sync.WaitGroup
	ref := &pb.WorkloadRef{Namespace: w.namespace, Name: "vllm"}
	repeat(ctx, &group, 100*time.Millisecond, func() {
		v.calls.try(ctx, callDeadline, func(ctx context.Context) error {
			_, err := client.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: ref})
			return err
		})
	})
	repeat(ctx, &group, time.Second, func() {
		v.connections.try(ctx, connectDeadline, func(ctx context.Context) error {
			c, err := connect(ctx)
			if err != nil {
				return err
			}
			return c.Close()
		})
	})
	repeat(ctx, &group, 200*time.Millisecond, func() {
		v.probes.try(ctx, probeDeadline, func(ctx context.Context) error { return w.probe(ctx, "/healthz") })
	})
	group.Go(func() {
		for release := 0; ctx.Err() == nil; release++ {
			w.release(ctx, v, client, ref, fmt.Sprintf("r%d-%d", time.Now().Unix(), release))
		}
	})
	repeat(ctx, &group, 50*time.Millisecond, func() {
		_, peak := w.process.Memory()
		v.peak = max(v.peak, peak)
		select {
		case <-w.process.Exited:
			v.killed = true
		default:
		}
	})
	group.Wait()
	return v
}

// release releases a new template in three steps, and promotes it.
func (w *world) release(ctx context.Context, v *verdict, client *plugin.Client, ref *pb.WorkloadRef, id string) {
	sets := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace)
	set, err := sets.Get(ctx, ref.GetName(), metav1.GetOptions{})
	if err != nil {
		return
	}
	suite.SetImages(set, "example.com/vllm:"+id)
	if _, err := sets.Update(ctx, set, metav1.UpdateOptions{}); err != nil {
		return
	}
	wait := durationpb.New(stepDeadline)
	step := func(call func(context.Context) error) bool {
		if ctx.Err() != nil {
			return false
		}
		before := v.steps.failed
		v.steps.try(ctx, stepDeadline, call)
		return v.steps.failed == before
	}
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}}
	if !step(func(ctx context.Context) error {
		_, err := client.Initialize(ctx, &pb.InitializeRequest{Workload: ref, ReleaseId: id, Policy: policy, Owner: "hostile", Wait: wait})
		return err
	}) {
		return
	}
	for batch := range int32(3) {
		if !step(func(ctx context.Context) error {
			r, err := client.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
				Workload: ref, ReleaseId: id, Target: &pb.UpgradeBatchRequest_Batch{Batch: batch}, Wait: wait,
			})
			if err == nil && r.GetContext().GetState() == pb.State_STATE_FAILED {
				err = fmt.Errorf("batch %d: %s", batch, r.GetContext().GetMessage())
			}
			return err
		}) {
			return
		}
	}
	step(func(ctx context.Context) error {
		r, err := client.Finalize(ctx, &pb.FinalizeRequest{
			Workload: ref, ReleaseId: id, Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, Wait: wait,
		})
		if err == nil && !r.GetDone() {
			err = fmt.Errorf("the promotion is not done: %s", r.GetContext().GetMessage())
		}
		return err
	})
}

// memoryLimit is that of config/deployment.
const memoryLimit = 256 << 20

// goMemoryLimit is the setting of config/deployment.
const goMemoryLimit = "GOMEMLIMIT=200MiB"

// confine puts a process into a memory cgroup, of version 1 or 2, where the machine allows it.
func confine(t *testing.T, process *child.Process) {
	t.Helper()
	pid := process.Cmd.Process.Pid
	dir, limit := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(dir); err != nil {
		dir, limit = "/sys/fs/cgroup", "memory.max"
	}
	dir = filepath.Join(dir, fmt.Sprintf("lockstep-hostile-%d", pid))
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = errors.Join(
			os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(memoryLimit)), 0o600),
			os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600),
		)
	}
	t.Cleanup(func() {
		<-process.Exited
		for range 50 { // the kernel may still be freeing it
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	if err != nil {
		t.Logf("no memory cgroup, so that the peak is judged afterwards: %v", err)
	}
}
