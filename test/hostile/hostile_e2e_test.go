// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hostile

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// attackEnv is the variable with how long each attack lasts.
const attackEnv = "LOCKSTEP_TEST_ATTACK"

func duration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(attackEnv)
	if text == "" {
		return 10 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, attackEnv)
	return d
}

// attacks by name. prepare returns the attack, which lasts until ctx ends and says what it did.
var attacks = []struct {
	name    string
	prepare func(*world) func(context.Context) string
}{
	{"none", func(*world) func(context.Context) string {
		return func(ctx context.Context) string { <-ctx.Done(); return "nothing" }
	}},
	{"unfinished-requests", func(w *world) func(context.Context) string {
		return func(ctx context.Context) string { return w.unfinishedRequests(ctx, 1, 400, none) }
	}},
	{"unfinished-requests-forged", func(w *world) func(context.Context) string {
		return func(ctx context.Context) string { return w.unfinishedRequests(ctx, 8, 100, forged) }
	}},
	{"unfinished-requests-known", func(w *world) func(context.Context) string {
		token := w.token("stranger")
		return func(ctx context.Context) string {
			return w.unfinishedRequests(ctx, 8, 100, func() string { return token })
		}
	}},
	{"connections", func(w *world) func(context.Context) string { return w.manyConnections }},
	{"silent-connections", func(w *world) func(context.Context) string { return w.silentConnections }},
	{"floods", func(w *world) func(context.Context) string {
		token := w.token("stranger")
		return func(ctx context.Context) string { return w.floods(ctx, token) }
	}},
	{"random-tokens", func(w *world) func(context.Context) string {
		return func(ctx context.Context) string { return w.callsAtRate(ctx, 500, 8, randomToken, nowhere) }
	}},
	{"forged-tokens", func(w *world) func(context.Context) string {
		return func(ctx context.Context) string { return w.callsAtRate(ctx, 500, 8, forged, nowhere) }
	}},
	{"denied-users", func(w *world) func(context.Context) string {
		var tokens []string
		for i := range 4 {
			tokens = append(tokens, w.token(fmt.Sprintf("stranger-%d", i)))
		}
		next := 0
		return func(ctx context.Context) string {
			return w.callsAtRate(ctx, 800, 4, func() string { next++; return tokens[next%len(tokens)] }, nowhere)
		}
	}},
	{"watches", func(w *world) func(context.Context) string {
		w.fleet()
		token := w.token("stranger")
		return func(ctx context.Context) string { return w.watchEverything(ctx, 50, token) }
	}},
	{"dashboards", func(w *world) func(context.Context) string {
		w.fleet()
		w.bind("lockstep-viewer", w.namespace, "viewer")
		token := w.token("viewer")
		return func(ctx context.Context) string { return w.watchEverything(ctx, 50, token) }
	}},
	{"watches-of-one", func(w *world) func(context.Context) string {
		w.fleet()
		return w.viewer(pb.WorkloadDriver_WatchBatchContext_FullMethodName, func() proto.Message {
			return &pb.WatchBatchContextRequest{Workload: &pb.WorkloadRef{Namespace: "fleet", Name: "model-0"}, IncludeGroups: true}
		})
	}},
	{"plans", func(w *world) func(context.Context) string {
		var batches []string
		for groups := 4; groups <= simulate.MaxGroups; groups += 4 {
			batches = append(batches, strconv.Itoa(groups))
		}
		request := &pb.PlanRequest{
			Workload: w.planned(), IncludeFrames: true, Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: batches},
		}
		return w.viewer(pb.WorkloadDriver_Plan_FullMethodName, func() proto.Message { return request })
	}},
	{"preflights", func(w *world) func(context.Context) string {
		w.crowd()
		request := &pb.PreflightRequest{
			Workload: w.planned(), Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}},
		}
		client, err := w.administrator()(w.t.Context())
		require.NoError(w.t, err)
		defer client.Close()
		await.Nil(w.t, "nodes and pods are listed", func(ctx context.Context) error {
			r, err := client.Preflight(ctx, request)
			if err == nil && slices.ContainsFunc(r.GetUnchecked(), func(u *pb.Unchecked) bool { return u.GetSubject() == "nodes" }) {
				err = fmt.Errorf("unchecked: %v", r.GetUnchecked())
			}
			return err
		})
		return w.viewer(pb.WorkloadDriver_Preflight_FullMethodName, func() proto.Message { return request })
	}},
	{"histories", func(w *world) func(context.Context) string {
		request := &pb.ListRevisionsRequest{Workload: w.planned(), IncludeTemplates: true}
		w.history(request.GetWorkload())
		return w.viewer(pb.WorkloadDriver_ListRevisions_FullMethodName, func() proto.Message { return request })
	}},
}

// viewer returns an attack of one user who may only read: as many calls at a time as a user may make.
func (w *world) viewer(method string, request func() proto.Message) func(context.Context) string {
	w.bind("lockstep-viewer", w.namespace, "viewer")
	token := w.token("viewer")
	return func(ctx context.Context) string { return w.callsInFlight(ctx, 4, 64, method, token, request) }
}

func randomToken() string { return strings.ToLower(forged()[100:]) }

// nowhere asks about a new namespace.
func nowhere() proto.Message {
	return &pb.CalculateBatchContextRequest{Workload: &pb.WorkloadRef{Namespace: fmt.Sprintf("n%d", time.Now().UnixNano()), Name: "x"}}
}

// The driver survives its callers in the memory of the shipped Deployment. Meanwhile an administrator is served, probes succeed, and a
// release passes its steps in time.
//
// Proves (test, unfinished-requests, random-tokens, watches): Hostile callers: in 256 MiB the driver lives, and serves its others in time.
// Proves: Hostile callers: every attack.
func TestHostile(t *testing.T) {
	var table strings.Builder
	out := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "attack\tdid\tpeak MiB\tkilled\tcalls\tnew connections\tprobes\tsteps of releases\tlog KiB\tcpu s")
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			w := newWorld(t)
			v := w.attack(attack.prepare)
			fmt.Fprintf(out, "%s\t%s\t%d\t%t\t%s\t%s\t%s\t%s\t%d\t%.1f\n", attack.name, v.did, v.peak>>20, v.killed,
				&v.calls, &v.connections, &v.probes, &v.steps, v.logged>>10, v.cpu.Seconds())
			assert.NotRegexp(t, "^0 ", v.did, "the attack did not happen")
			assert.True(t, !v.killed && v.peak <= memoryLimit, "peak %d MiB, killed: %t", v.peak>>20, v.killed)
			for name, y := range map[string]*tally{
				"calls": &v.calls, "new connections": &v.connections, "steps of releases": &v.steps,
			} {
				assert.True(t, y.failed <= 0 && y.tried != 0, "%s: %s: %v", name, y, y.err)
			}
			y := &v.probes
			assert.True(t, y.longest < probeFailures && y.tried != 0, "probes: %d in a row failed: %s: %v", y.longest, y, y.err)
		})
	}
	_ = out.Flush()
	fmt.Fprintf(os.Stdout, "attacks of %s each:\n%s", duration(t), table.String())
}

// attack attacks the driver while its other callers go on.
func (w *world) attack(prepare func(*world) func(context.Context) string) *verdict {
	w.t.Helper()
	connect := w.administrator()
	client, err := connect(w.t.Context())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = client.Close() })
	suite.Apply(w.t, w.cluster, w.namespace, suite.Workload("vllm", 4, nil))
	await.Nil(w.t, "the workload is adopted", func(ctx context.Context) error {
		r, err := client.Adopt(ctx, &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: w.namespace, Name: "vllm"}})
		if err == nil && r.GetContext().GetStableReady() < 4 {
			err = errNotYet
		}
		return err
	})
	run := prepare(w)
	ctx, cancel := context.WithTimeout(w.t.Context(), duration(w.t))
	defer cancel()
	done := make(chan string, 1)
	go func() { done <- run(ctx) }()
	before := w.process.CPU()
	v := w.observe(ctx, client, connect)
	v.cpu = w.process.CPU() - before
	v.did = <-done
	if info, err := os.Stat(w.log); err == nil {
		v.logged = info.Size()
	}
	return v
}
