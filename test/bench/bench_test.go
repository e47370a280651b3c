// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	lwsv1 "sigs.k8s.io/lws/client-go/clientset/versioned/typed/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

var (
	reps   = flag.Int("reps", 9, "releases with instantly ready pods, each beside a native rolling update; a third as many with a start-up time")
	divide = flag.Int("divide", 1, "how many times smaller everything else is, 1 to 10, to try a part out")
)

// namespace holds all workloads.
const namespace = "bench"

// bench is one part: a control plane of its own, in which no earlier part has left workloads.
type bench struct {
	*testing.B

	ctx        context.Context
	cluster    *cluster.Cluster
	kube       kubernetes.Interface
	sets       lwsv1.LeaderWorkerSetInterface
	kubeconfig string // with the driver's permissions of config/base
	report     *report
}

// interrupted ends when the user interrupts the run.
var interrupted context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	var stop context.CancelFunc
	interrupted, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(interrupted, stop) // the second signal ends it at once
	code := m.Run()
	stop()
	driver.Cleanup()
	os.Exit(code)
}

// BenchmarkLockstep measures what -bench selects.
func BenchmarkLockstep(b *testing.B) {
	r := &report{machine: machine()}
	for _, part := range []struct {
		name    string
		measure func(*bench)
	}{
		{"start", (*bench).measureStart},
		{"release", (*bench).measureRelease},
		{"scale", (*bench).measureScale},
		{"storm", (*bench).measureStorm},
		{"fleet", (*bench).measureFleet},
	} {
		b.Run(part.name, func(b *testing.B) { part.measure(newBench(b, r)) })
	}
	r.write(os.Stdout)
}

func newBench(t *testing.B, r *report) *bench {
	t.Helper()
	ctx, cancel := context.WithCancel(interrupted)
	t.Cleanup(cancel)
	roomy := cluster.WithNodes(8, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2000")}) // for the storm
	c, err := cluster.Start(ctx, roomy, cluster.WithAudit())
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	suite.Apply(t, c, "", fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace))
	b := &bench{B: t, ctx: ctx, cluster: c, kubeconfig: driver.Kubeconfig(t, c), report: r}
	kube, sets, _ := suite.Clients(c)
	b.kube, b.sets = kube, sets.LeaderworkersetV1().LeaderWorkerSets(namespace)
	b.must(c.Settle(ctx))
	return b
}

// must ends the part if there is an error.
func (b *bench) must(err error) {
	b.Helper()
	require.NoError(b, err)
}

// logf says at once what happens; the log of a benchmark is shown at its end.
func (b *bench) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// smaller returns a number, divided by -divide.
func smaller(n int) int { return max(n / *divide, 1) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
