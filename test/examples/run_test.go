// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package examples

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// release runs a script, changes the image, and runs the script again, as in examples/README.md.
func (e *env) release(script string) {
	e.T.Helper()
	assert.Contains(e.T, e.run(script), "NOTHING_TO_RELEASE", "with an unchanged template it printed")
	pods := e.pods()
	e.mustRest("v1")
	e.edit("v2", nil)
	assert.Contains(e.T, e.run(script), "COMPLETED", "a release ended with")
	e.mustRest("v2")
	for name, uid := range e.pods() {
		assert.NotEqual(e.T, uid, pods[name], "pod %s was not replaced", name)
	}
}

// begin starts a release to a template whose pods never become ready, and waits until its first batch has started.
func (e *env) begin(script, tag string) *process {
	e.T.Helper()
	pods := e.pods()
	e.edit(tag, map[string]string{cluster.AnnotationBehavior: cluster.BehaviorNeverReady})
	p := e.start(script)
	e.Eventually("the first batch has started", func(context.Context) error {
		if len(e.pods()) == len(pods) {
			return errors.New("no pod was added")
		}
		return nil
	})
	return p
}

// follows checks that a host releases a template that replaces the first one during the release.
func (e *env) follows(script string) {
	e.T.Helper()
	p := e.begin(script, "v3")
	e.edit("v4", nil)
	if err := p.wait(); err != nil {
		e.T.Fatalf("the template changed in mid-release: %v: %s", err, p.text())
	}
	e.mustRest("v4")
}

// yields checks that a host reports that its release was aborted, and exits.
func (e *env) yields(script string) {
	e.T.Helper()
	pods := e.pods()
	p := e.begin(script, "v5")
	e.run(e.block("grpcurl", "--abort"))
	if err := p.wait(); err == nil || !strings.Contains(p.text(), "was rolled back") {
		e.T.Errorf("an aborted release ended with %v: %s", err, p.text())
	}
	e.mustRest("v4")
	now := e.pods()
	assert.True(e.T, maps.Equal(now, pods), "an aborted release has replaced pods of the workload: %v, were %v", now, pods)
}

// Proves (test): Examples: grpcurl and the Go host.
func TestGrpcurl(t *testing.T) {
	e := newEnv(t)
	e.serve("grpcurl")
	e.release(e.block("grpcurl", "25%"))
}

// A release can be aborted after its host has exited.
//
// Proves: Examples: Node.js; aborts and template changes with grpcurl.
func TestGrpcurlAbort(t *testing.T) {
	e := newEnv(t)
	e.serve("grpcurl")
	script := e.block("grpcurl", "25%")
	e.run(script)
	pods := e.pods()
	p := e.begin(script, "v2")
	p.stop()
	_ = p.wait()
	assert.Contains(t, e.run(e.block("grpcurl", "--abort")), "ROLLED_BACK", "abort ended with")
	e.mustRest("v1")
	now := e.pods()
	assert.True(t, maps.Equal(now, pods), "an aborted release has replaced pods of the workload: %v, were %v", now, pods)
}

// After another template change the script continues only when the user runs it again.
//
// Proves: Examples: Node.js; aborts and template changes with grpcurl.
func TestGrpcurlTemplateChange(t *testing.T) {
	e := newEnv(t)
	e.serve("grpcurl")
	script := "export RELEASE_ID=r1\n" + e.block("grpcurl", "25%")
	e.run(e.block("grpcurl", "25%"))
	p := e.begin(script, "v2")
	e.edit("v3", nil)
	if err := p.wait(); err == nil || !strings.Contains(p.text(), "to resume:    RELEASE_ID=r1 ") {
		t.Errorf("a changed template ended the script with %v: %s", err, p.text())
	}
	assert.Contains(t, e.run(script), "COMPLETED", "a resumed release ended with")
	e.mustRest("v3")
}

// Proves (test): Examples: grpcurl and the Go host.
func TestHostGo(t *testing.T) {
	e := newEnv(t)
	script := e.block("host-go", "go run")
	e.release(script)
	e.follows(script)
}

// Proves: Examples: Node.js; aborts and template changes with grpcurl.
func TestHostNode(t *testing.T) {
	for _, tool := range []string{"node", "npm"} {
		_, err := exec.LookPath(tool)
		require.NoError(t, err, "%s is not installed, and examples/host-node needs it: on Debian and Ubuntu, apt-get install nodejs npm "+
			"(Node 18 or later; .ci/run does that)", tool)
	}
	e := newEnv(t)
	e.run(e.block("host-node", "npm --prefix examples/host-node ci"))
	e.serve("host-node")
	script := e.block("host-node", "start")
	e.release(script)
	e.follows(script)
	e.yields(script)
}

// The commands of the README release prefill and decode together.
//
// Proves: Example: prefill and decode as one DisaggregatedSet.
func TestDisaggregated(t *testing.T) {
	c := cluster.Shared(t)
	e := &env{Env: suite.NewEnv(t, c, "llm"), binary: binary(t), kubeconfig: c.Kubeconfig()}
	sets := e.Objects(disaggregated.GroupVersion.WithResource("disaggregatedsets"))
	ready := func(tag string) {
		await.Nil(t, "two groups of each role run "+tag, func(ctx context.Context) error {
			list, err := e.Sets().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range list.Items {
				w := &list.Items[i]
				if !strings.HasSuffix(w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image, ":"+tag) || w.Status.ReadyReplicas != 2 {
					return fmt.Errorf("%s has %d ready groups", w.Name, w.Status.ReadyReplicas)
				}
			}
			if len(list.Items) != 2 {
				return fmt.Errorf("there are %d children", len(list.Items))
			}
			return nil
		})
	}
	for line := range strings.Lines(e.block("disaggregated", "kubectl apply -f")) {
		switch command := strings.TrimSpace(line); {
		case strings.HasPrefix(command, "kubectl apply -k config/disaggregated"):
			suite.InstallRoles(t, c)
		case command == "kubectl apply -f examples/disaggregated/set.yaml":
			set := files.Read(t, source("disaggregated", "set.yaml"))
			suite.Apply(t, c, e.Namespace, string(set))
			ready("v0.19.0")
		case strings.HasPrefix(command, "kubectl edit disaggregatedset llm"):
			var ops []string
			for _, role := range []string{"0", "1"} {
				for _, template := range []string{"leader", "worker"} {
					ops = append(ops, `{"op":"replace","path":"/spec/roles/`+role+`/spec/leaderWorkerTemplate/`+template+
						`Template/spec/containers/0/image","value":"vllm/vllm-openai:v0.20.0"}`)
				}
			}
			patch := []byte("[" + strings.Join(ops, ",") + "]")
			_, err := sets.Patch(t.Context(), "llm", types.JSONPatchType, patch, metav1.PatchOptions{})
			require.NoError(t, err)
		case strings.HasPrefix(command, "lockstep "):
			e.run(strings.Replace(command, "lockstep ", e.binary+" --namespace "+e.Namespace+" ", 1))
		default:
			t.Fatalf("the test does not know %q", command)
		}
	}
	ready("v0.20.0")
	suite.DeleteObject(t, sets, "llm") // its GPUs are for the model servers
	await.Nil(t, "the groups are deleted", func(ctx context.Context) error {
		list, err := e.Sets().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d children are left", len(list.Items))
		}
		return err
	})
}

const image = "example.com/vllm:"

func TestMain(m *testing.M) {
	code := cluster.Main(m, cluster.WithTraefik(), cluster.WithNodes(16, nil)) // with GPUs for two DisaggregatedSets
	driver.Cleanup()
	os.Exit(code)
}

// env is a namespace with the examples' workload.
type env struct {
	*suite.Env

	// The binary, a kubeconfig with the permissions of config/base, and an address to serve on.
	binary, kubeconfig, address string
}

// newEnv applies workload.yaml, and waits until its groups are ready.
func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	e := &env{
		Env: suite.NewEnv(t, c, "vllm"), binary: binary(t), address: "unix://" + filepath.Join(t.TempDir(), "driver.sock"),
		kubeconfig: driver.Kubeconfig(t, c),
	}
	manifest := files.Read(t, source("workload.yaml"))
	e.Apply(string(manifest))
	e.AwaitReady()
	return e
}

// binary returns the path of the lockstep under test.
func binary(t *testing.T) string {
	t.Helper()
	path := driver.Path(t)
	return path
}

// edit changes the image of leaders and workers, as with kubectl edit, and annotates the new pods.
func (e *env) edit(tag string, annotations map[string]string) {
	e.T.Helper()
	e.Edit(tag, func(w *lws.LeaderWorkerSet) {
		for _, template := range suite.Templates(w) {
			template.Annotations = annotations
		}
	})
}

// pods returns the UIDs of the namespace's pods by name.
func (e *env) pods() map[string]string {
	e.T.Helper()
	list := suite.List(e.T, e.Kube.CoreV1().Pods(e.Namespace), metav1.ListOptions{})
	uids := make(map[string]string, len(list.Items))
	for _, pod := range list.Items {
		uids[pod.Name] = string(pod.UID)
	}
	return uids
}

// mustRest fails the test unless only the hold is left of a release, and all pods are the workload's, ready and at the
// image's tag.
func (e *env) mustRest(tag string) {
	e.T.Helper()
	all := suite.List(e.T, e.Sets(), metav1.ListOptions{})
	assert.Equal(e.T, 1, len(all.Items), "LeaderWorkerSets are left, want the user's only")
	w := e.Workload(e.T.Context())
	assert.NoError(e.T, suite.Held(w))
	// The canary's pods are garbage collected after the canary.
	tags := strings.Repeat(tag+" ", int(*w.Spec.Replicas))
	grouptags.Await(e.T, e.Kube, e.Namespace, "", int(*w.Spec.LeaderWorkerTemplate.Size), strings.TrimSpace(tags))
}
