// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"regexp"
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
)

func TestCampaignRequiresFilledCaches(t *testing.T) {
	t.Parallel()
	hosttest.CampaignRequiresCaches(t, Run,
		hosttest.Kind{GroupVersionKind: v1beta1.GroupVersion.WithKind("BatchRelease"), Resource: "batchreleases"},
		hosttest.Kind{GroupVersionKind: host.LeaderWorkerSet, Resource: "leaderworkersets"},
		hosttest.Kind{GroupVersionKind: host.DisaggregatedSet, Resource: "disaggregatedsets"},
		hosttest.Kind{GroupVersionKind: rival().GroupVersionKind(), Resource: "mutatingwebhookconfigurations"})
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	const releases, workloads = "/apis/rollouts.kruise.io/v1beta1", "/apis/leaderworkerset.x-k8s.io/v1"
	const webhook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kruise-rollout-mutating-webhook-configuration"
	lists := map[string]string{
		releases:  `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"batchreleases","kind":"BatchRelease"}]}`,
		workloads: `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"leaderworkersets","kind":"LeaderWorkerSet"}]}`,
		webhook:   `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"kruise-rollout-mutating-webhook-configuration"}}`,
	}
	// The command of the documentation.
	install := regexp.MustCompile("\nkubectl apply -f https://.*").FindString(string(files.Read(t, "../../../../docs/kruise-batchrelease.md")))
	for _, test := range []struct {
		name   string
		serves []string
		want   string
	}{
		{"no BatchRelease", []string{workloads}, "the CRD of BatchRelease is not installed: " + install[1:]},
		{"no LeaderWorkerSet", []string{releases}, "install LWS v0.9.0"},
		{"Kruise's manager", []string{releases, workloads, webhook}, "Kruise Rollouts' own manager is installed here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			documents := map[string]string{}
			for _, path := range test.serves {
				documents[path] = lists[path]
			}
			hosttest.Refuses(t, Run, documents, test.want)
		})
	}
}
