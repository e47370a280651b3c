// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
)

func TestCampaignRequiresFilledCaches(t *testing.T) {
	t.Parallel()
	hosttest.CampaignRequiresCaches(t, func(ctx context.Context, config *rest.Config, s host.Settings) error {
		s.Driver = &scripted{}
		return Run(ctx, config, s)
	},
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
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if req.URL.Path == test.serves {
					fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"lockstep.dev/v1alpha1","resources":[{"name":"rollouttargets","kind":"RolloutTarget"}]}`)
					return
				}
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			}))
			defer server.Close()
			err := Run(t.Context(), &rest.Config{Host: server.URL}, host.Settings{
				Driver: &scripted{}, Logger: slog.New(slog.DiscardHandler),
			})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}
