// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

func TestGracefulWorkload(t *testing.T) {
	var w lws.LeaderWorkerSet
	if err := yaml.UnmarshalStrict(graceful(workload), &w); err != nil {
		t.Fatal(err)
	}
	templates := w.Spec.LeaderWorkerTemplate
	for role, annotations := range map[string]map[string]string{
		"leader": templates.LeaderTemplate.Annotations, "worker": templates.WorkerTemplate.Annotations,
	} {
		if annotations[cluster.AnnotationTermination] == "" || annotations[cluster.AnnotationStartup] == "" {
			t.Errorf("the %s's annotations are %v, want a startup and a termination time", role, annotations)
		}
	}
}

func TestFollow(t *testing.T) {
	var got []host.Event
	err := follow(strings.NewReader(`{"event":"batch-ready","time":"2026-01-02T12:00:00Z","message":"m","context":{"trafficWeight":25}}
{"event":"finished","time":"2026-01-02T12:00:01Z","outcome":"promoted"}
`), func(e host.Event) { got = append(got, e) })
	if err != nil || len(got) != 2 {
		t.Fatalf("follow: %d events, %v", len(got), err)
	}
	if got[0].Kind != host.EventBatchReady || got[0].Context.GetTrafficWeight() != 25 || got[1].Outcome != host.OutcomePromoted {
		t.Errorf("events are %+v", got)
	}
	if err := follow(strings.NewReader("no document"), func(host.Event) {}); err == nil {
		t.Error("no error for invalid JSON")
	}
}
