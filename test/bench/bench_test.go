// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
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

// measureStart starts the process repeatedly, in an almost empty cluster.
func (b *bench) measureStart() {
	starts := smaller(11)
	var answers, serves []time.Duration
	for range starts {
		s := b.serve()
		answers, serves = append(answers, s.answers), append(serves, s.serves)
		s.stop()
	}
	healthy := spreadOf(answers)
	row := b.report.table(fmt.Sprintf("START of `lockstep serve`, %d times", starts), "median (extremes)")
	row("exec until health answers", "%s", healthy)
	row("exec until SERVING (caches filled)", "%s", spreadOf(serves))
	b.report.aim(healthy.median < 150*time.Millisecond, "exec until health answers, median", "below 150 ms", "%d ms", healthy.median.Milliseconds())
}

// report has all measurements of one run.
type report struct {
	machine string
	tables  [][]string // of lines, whose cells are separated by tabs
	aims    []string
}

// table adds a table. row adds a row to it, of which the first cell says what the others are; "|" separates them.
func (r *report) table(title string, columns ...string) (row func(what, cells string, args ...any)) {
	i := len(r.tables)
	r.tables = append(r.tables, []string{strings.Join(append([]string{"\n" + title}, columns...), "\t")})
	return func(what, cells string, args ...any) {
		r.tables[i] = append(r.tables[i], what+"\t"+strings.ReplaceAll(fmt.Sprintf(cells, args...), "|", "\t"))
	}
}

// aim adds a target, and whether this run met it. It has no effect on the result.
func (r *report) aim(met bool, what, want, figure string, args ...any) {
	verdict := map[bool]string{true: "met", false: "MISSED"}[met]
	r.aims = append(r.aims, strings.Join([]string{what, want, fmt.Sprintf(figure, args...), verdict}, "\t"))
}

func (r *report) write(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range slices.Concat([]string{"machine: " + r.machine}, slices.Concat(r.tables...), []string{"\nAIM\tWANTED\tMEASURED\t"}, r.aims) {
		_, _ = fmt.Fprintln(t, line)
	}
	_ = t.Flush()
}

// spread is a distribution of times.
type spread struct{ median, least, most time.Duration }

func spreadOf(all []time.Duration) spread {
	return spread{median(all), slices.Min(all), slices.Max(all)}
}

func (s spread) String() string {
	if s.most < time.Second {
		return fmt.Sprintf("%d ms (%d-%d)", s.median.Milliseconds(), s.least.Milliseconds(), s.most.Milliseconds())
	}
	return fmt.Sprintf("%.2f s (%.2f-%.2f)", s.median.Seconds(), s.least.Seconds(), s.most.Seconds())
}

func median[T float64 | time.Duration](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// machine describes where the figures were measured.
func machine() string {
	model := "unknown CPU"
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	raw, _ = os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(raw), " ")
	return fmt.Sprintf("%d x %s, load %s at the beginning, %s", runtime.NumCPU(), model, load, runtime.Version())
}
