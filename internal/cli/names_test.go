// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
)

// A shell completes NAME by the workloads of the namespace, and offers nothing if it can't list them.
func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	const sets, disaggregated = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/%s/leaderworkersets", "/apis/disaggregatedset.x-k8s.io/v1/namespaces/%s/disaggregatedsets"
	const child = `{"metadata": {"name": "llm-0-decode", "ownerReferences": [{"kind": "DisaggregatedSet", "name": "llm", "controller": true}]}}`
	items := map[string]string{
		fmt.Sprintf(sets, "models"):          `{"metadata": {"name": "vllm"}}, {"metadata": {"name": "sglang"}}, ` + child,
		fmt.Sprintf(disaggregated, "models"): `{"metadata": {"name": "llm"}}`,
		fmt.Sprintf(sets, "older"):           `{"metadata": {"name": "vllm"}}`, // in a cluster without DisaggregatedSets
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if items[r.URL.Path] == "" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [%s]}`, items[r.URL.Path])
	}))
	t.Cleanup(server.Close)
	path := writeKubeconfigOf(t, server.URL)
	const all = "vllm\nsglang\ndisaggregatedset/llm\n"
	for _, tt := range []struct{ command, namespace, want string }{
		{"status", "models", all}, {"plan", "models", all}, {"release", "models", all}, {"status", "older", "vllm\n"}, {"status", "others", ""},
	} {
		var stdout, stderr buffer
		p := Program{Args: []string{"__complete", tt.command, "--kubeconfig", path, "--namespace", tt.namespace, ""}, Stdout: &stdout, Stderr: &stderr}
		code := p.Run(deadline(t))
		if got, _, _ := strings.Cut(stdout.String(), ":4"); code != 0 || got != tt.want {
			t.Errorf("%s in %s: code %d, %q, want %q; %s", tt.command, tt.namespace, code, stdout.String(), tt.want, stderr.String())
		}
	}
}

// The command in a row of the list is for the workload of that row, and for the cluster and namespace that were listed.
func TestListAdopts(t *testing.T) { //nolint:paralleltest // A driver inside has client-go's logger, which is global.
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		items := ""
		if strings.Contains(r.URL.Path, "/leaderworkersets") && !strings.Contains(r.URL.Path, "/empty/") {
			items = `{"metadata":{"namespace":"serving","name":"llama"}},{"metadata":{"namespace":"serving","name":"deleted since"}}`
		}
		fmt.Fprintf(w, `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","items":[%s]}`, items)
	}))
	defer api.Close()
	config := writeKubeconfigOf(t, api.URL)
	list := func(args ...string) (code int, text string) {
		var stdout, stderr buffer
		p := Program{
			Args: append(append([]string{"status", "--context", "c"}, args...), "--kubeconfig", config), Stdout: &stdout, Stderr: &stderr,
			NewDriver: func(*rest.Config, lwsdriver.Options) (server.Driver, error) {
				d := plugintest.NewFakeDriver()
				d.SetWorkload("serving", "llama", 4, "aaaa")
				return engine{d, d, untilEnd}, nil
			},
		}
		return p.Run(deadline(t)), stdout.String()
	}
	for args, want := range map[string]string{
		"-A":         "lockstep adopt llama -n serving --context c --kubeconfig " + config + "\n",
		"-n serving": "lockstep adopt llama --context c --kubeconfig " + config + " --namespace serving\n",
		"-n empty":   "those of all namespaces: lockstep status -A --context c --kubeconfig " + config + "\n",
	} {
		code, text := list(strings.Fields(args)...)
		assert.True(t, code == exit.OK && strings.Contains(text, want), "status %s exits with %d, want %q in:\n%s", args, code, want, text)
	}
	code, text := list("-A", "-o", "json")
	assert.True(t, code == exit.OK && strings.Count(text, "\n") == 1 && strings.Contains(text, `"replicas":4`) && strings.Contains(text, "STATE_UNMANAGED"),
		"a program is not told of a workload that is not adopted: exit code %d\n%s", code, text)
}
