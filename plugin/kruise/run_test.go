// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
)

func runScripted(ctx context.Context, config *rest.Config, s host.Settings) error {
	s.Driver = &scripted{}
	return Run(ctx, config, s)
}

func TestCampaignRequiresFilledCaches(t *testing.T) {
	t.Parallel()
	hosttest.CampaignRequiresCaches(t, runScripted,
		hosttest.Kind{GroupVersionKind: v1alpha1.GroupVersion.WithKind("RolloutTarget"), Resource: "rollouttargets"},
		hosttest.Kind{GroupVersionKind: host.LeaderWorkerSet, Resource: "leaderworkersets"},
		hosttest.Kind{GroupVersionKind: host.DisaggregatedSet, Resource: "disaggregatedsets"},
		hosttest.Kind{GroupVersionKind: revisionKind, Resource: "controllerrevisions"})
}

func TestRunSaysWhatIsNotInstalled(t *testing.T) {
	for _, test := range []struct{ name, serves, want string }{
		{"neither", "", "kubectl apply -k config/kruise/crd"},
		{"no LeaderWorkerSet", "/apis/lockstep.dev/v1alpha1", "install LWS v0.9.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			const list = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"lockstep.dev/v1alpha1","resources":[{"name":"rollouttargets","kind":"RolloutTarget"}]}`
			hosttest.Refuses(t, runScripted, map[string]string{test.serves: list}, test.want)
		})
	}
}
