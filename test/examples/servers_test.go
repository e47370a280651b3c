// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	argo "github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/google/go-cmp/cmp"
	kruise "github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/cli"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/modelservers"
)

// build returns the documents that kustomize builds of an example.
func build(t *testing.T, server, overlay string) []string {
	t.Helper()
	documents, err := modelservers.Build(source(), server, overlay)
	require.NoError(t, err)
	return documents
}

// preflight runs `lockstep preflight --fail-on warning` with a manifest, and returns its exit code and output.
func preflight(t *testing.T, manifest string, args ...string) (code int, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	files.Write(t, file, []byte(manifest))
	var out bytes.Buffer
	p := cli.Program{Args: append([]string{"preflight", "-f", file, "--fail-on", "warning"}, args...), Stdout: &out, Stderr: &out}
	return p.Run(t.Context()), out.String()
}

// Each example passes preflight, for its own policy as in place.
func TestPreflightIsClean(t *testing.T) {
	t.Parallel()
	check := func(name, manifest string, args ...string) {
		t.Run(name, func(t *testing.T) {
			code, out := preflight(t, manifest, args...)
			assert.Equal(t, exit.OK, code, "exit code %d\n%s", code, out)
		})
	}
	workload := files.Read(t, source("workload.yaml"))
	partition := []string{"--style", "partition", "--batches", "50%,100%"}
	for _, policy := range [][]string{{"--policy", source("gates.yaml")}, {"--policy", source("inferencepool/policy.yaml")}, partition} {
		check("workload", string(workload), append(policy, "--longest-request", "5m")...)
	}
	for _, server := range modelservers.Names() {
		for _, overlay := range modelservers.Overlays() {
			manifest := strings.Join(build(t, server, overlay), "---\n")
			for _, policy := range [][]string{{"--policy", source(server, "policy.yaml")}, partition} {
				check(server+"/"+overlay, manifest, append(policy, "--longest-request", "10m")...)
			}
		}
	}
}

// The test above fails where it should.
func TestPreflightFindsDefects(t *testing.T) {
	t.Parallel()
	for rule, change := range map[string]func(*corev1.PodSpec){
		"ReadinessProbeMissing":          func(s *corev1.PodSpec) { s.Containers[0].ReadinessProbe = nil },
		"PreStopMissing":                 func(s *corev1.PodSpec) { s.Containers[0].Lifecycle = nil },
		"GracePeriodBelowLongestRequest": func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = nil },
	} {
		w := leaderWorkerSet(t, "vllm")
		change(&w.Spec.LeaderWorkerTemplate.LeaderTemplate.Spec)
		manifest, err := yaml.Marshal(w)
		require.NoError(t, err)
		code, out := preflight(t, string(manifest), "--longest-request", "10m")
		assert.True(t, code == exit.Found && strings.Contains(out, rule), "%s: exit code %d\n%s", rule, code, out)
	}
}

// kinds are the types of the objects. Those whose types are in no module of this project have the fields that the tests read.
var kinds = map[string]func() any{
	"leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": func() any { return &lws.LeaderWorkerSet{} },
	"v1 Service":                                   func() any { return &corev1.Service{} },
	"v1 ServiceAccount":                            func() any { return &corev1.ServiceAccount{} },
	"rbac.authorization.k8s.io/v1 Role":            func() any { return &rbacv1.Role{} },
	"rbac.authorization.k8s.io/v1 RoleBinding":     func() any { return &rbacv1.RoleBinding{} },
	"gateway.networking.k8s.io/v1 HTTPRoute":       func() any { return &gateway.HTTPRoute{} },
	"argoproj.io/v1alpha1 Rollout":                 func() any { return &argo.Rollout{} },
	"argoproj.io/v1alpha1 AnalysisTemplate":        func() any { return &argo.AnalysisTemplate{} },
	"lockstep.dev/v1alpha1 RolloutTarget":          func() any { return &v1alpha1.RolloutTarget{} },
	"rollouts.kruise.io/v1beta1 Rollout":           func() any { return &kruise.Rollout{} },
	"monitoring.coreos.com/v1 PodMonitor":          func() any { return &podMonitor{} },
	"argoproj.io/v1alpha1 Application":             func() any { return &application{} },
	"source.toolkit.fluxcd.io/v1 GitRepository":    func() any { return &metav1.PartialObjectMetadata{} },
	"kustomize.toolkit.fluxcd.io/v1 Kustomization": func() any { return &fluxKustomization{} },
}

// podMonitor is the Prometheus Operator's kind.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Selector            metav1.LabelSelector
		PodTargetLabels     []string
		PodMetricsEndpoints []struct{ Port string }
	}
}

// application is Argo CD's kind.
type application struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Source struct {
			Path      string
			Kustomize struct{ Namespace string }
		}
		Destination       struct{ Namespace string }
		IgnoreDifferences []struct {
			Group, Kind                         string
			JSONPointers, ManagedFieldsManagers []string
		}
		SyncPolicy struct{ SyncOptions []string }
	}
}

// fluxKustomization is Flux's kind.
type fluxKustomization struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Path, TargetNamespace string
		Ignore                []fluxIgnore
		HealthChecks          []map[string]string
	}
}

type fluxIgnore struct {
	Target struct{ Group, Kind, Name string }
	Paths  []string
}

// decode returns the objects by kind and name. A field that a kind of this project's modules does not have fails the test.
func decode(t *testing.T, documents ...string) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for _, document := range documents {
		var meta metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal([]byte(document), &meta))
		kind := kinds[meta.APIVersion+" "+meta.Kind]
		require.NotNil(t, kind, "the test does not know %s %s", meta.APIVersion, meta.Kind)
		object := kind()
		read := yaml.UnmarshalStrict
		switch object.(type) {
		case *podMonitor, *application, *fluxKustomization, *metav1.PartialObjectMetadata:
			read = func(text []byte, object any, _ ...yaml.JSONOpt) error { return yaml.Unmarshal(text, object) }
		}
		err := read([]byte(document), object)
		assert.NoError(t, err, "%s %s", meta.Kind, meta.Name)
		objects[meta.Kind+" "+meta.Name] = object
	}
	return objects
}

func leaderWorkerSet(t *testing.T, server string) *lws.LeaderWorkerSet {
	t.Helper()
	w, ok := decode(t, build(t, server, "base")...)["LeaderWorkerSet "+server].(*lws.LeaderWorkerSet)
	require.True(t, ok, "examples/%s/base has no LeaderWorkerSet %s", server, server)
	return w
}

// A release of these examples waits for whole groups, drains leaders, and measures canary and stable groups apart.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, server := range modelservers.Names() {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			objects := map[string]any{}
			for _, overlay := range modelservers.Overlays() {
				maps.Copy(objects, decode(t, build(t, server, overlay)...))
			}
			w := leaderWorkerSet(t, server)
			template := w.Spec.LeaderWorkerTemplate
			leader, worker := template.LeaderTemplate.Spec, template.WorkerTemplate.Spec
			assert.True(t, template.RestartPolicy == lws.RecreateGroupOnPodRestart && w.Spec.RolloutStrategy.RollingUpdateConfiguration == nil,
				"restart policy %s, rolling update %v", template.RestartPolicy, w.Spec.RolloutStrategy)
			c := leader.Containers[0]
			assert.Equal(t, worker.Containers[0].Image, c.Image, "leaders run %s, workers %s", c.Image, worker.Containers[0].Image)
			assert.Equal(t, c.ReadinessProbe.HTTPGet.Path, c.StartupProbe.HTTPGet.Path,
				"the startup probe asks %s, readiness %s", c.StartupProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path)
			load := time.Duration(c.StartupProbe.PeriodSeconds*c.StartupProbe.FailureThreshold) * time.Second
			deadline := 45 * time.Minute
			assert.True(t, load >= 30*time.Minute && load < deadline, "the startup probe allows %s, the release %s", load, deadline)
			assert.Greater(t, *worker.TerminationGracePeriodSeconds, *leader.TerminationGracePeriodSeconds, "a worker ends before its leader does")
			mustFitTheWorkload(t, server, objects, template.LeaderTemplate)
			mustMeasureTheWorkload(t, server)
			for _, file := range []string{"policy.yaml", "argo/rollout.yaml", "kruise/rollout.yaml"} {
				text := files.Read(t, source(server, file))
				assert.False(t, !strings.Contains(string(text), "45m") && !strings.Contains(string(text), "progressDeadlineSeconds: 2700"),
					"%s/%s has another progress deadline", server, file)
			}
		})
	}
}

// The hooks end with the last request: while curl, here a function, has requests to report, they wait.
func TestDrainHooks(t *testing.T) {
	t.Parallel()
	busy := map[string]string{
		"vllm": `vllm:num_requests_running{engine="0"} 1.0
vllm:num_requests_waiting{engine="0"} 0.0`,
		"tensorrt-llm": `nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 20
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 0`,
	}
	idle := strings.NewReplacer(" 1.0", " 0.0", " 20", " 0")
	for _, server := range modelservers.Names() {
		template := leaderWorkerSet(t, server).Spec.LeaderWorkerTemplate
		if hook := template.LeaderTemplate.Spec.Containers[0].Lifecycle.PreStop; hook.Exec != nil {
			answers := []string{busy[server], busy[server], idle.Replace(busy[server])}
			got := calls(t, hook.Exec.Command[2], answers)
			assert.Equal(t, len(answers), got, "%s: a leader asked %d times until it was idle, want %d", server, got, len(answers))
		} else if server != "sglang" { // which answers its requests itself
			t.Errorf("%s: leaders do not wait for their requests", server)
		}
		// The third call fails, because the leader is gone.
		got := calls(t, template.WorkerTemplate.Spec.Containers[0].Lifecycle.PreStop.Exec.Command[2], []string{"ok", "ok"})
		assert.Equal(t, 3, got, "%s: a worker asked %d times until its leader was gone, want 3", server, got)
	}
}

// calls returns how often a script calls curl, which prints these answers and then fails.
func calls(t *testing.T, script string, answers []string) int {
	t.Helper()
	dir := t.TempDir()
	for i, answer := range answers {
		files.Write(t, filepath.Join(dir, strings.Repeat("x", i+1)), []byte(answer+"\n"))
	}
	const functions = "sleep() { :; }\ncurl() { printf x >>calls; cat \"$(cat calls)\" 2>/dev/null; }\n"
	cmd := exec.CommandContext(t.Context(), "timeout", "20", "bash", "-c", functions+script)
	cmd.Dir = dir
	_ = cmd.Run() // kubelet ignores the exit code of a hook
	made := files.Read(t, filepath.Join(dir, "calls"))
	return len(made)
}

// mustFitTheWorkload checks what refers to the leaders by labels and ports.
func mustFitTheWorkload(t *testing.T, server string, objects map[string]any, leader *corev1.PodTemplateSpec) {
	t.Helper()
	service, ok := objects["Service "+server+"-leader"].(*corev1.Service)
	assert.True(t, ok && maps.Equal(service.Spec.Selector, map[string]string{lws.SetNameLabelKey: server, lws.WorkerIndexLabelKey: "0"}),
		"the Service %v does not select the leaders", service)
	monitor, ok := objects["PodMonitor "+server].(*podMonitor)
	require.True(t, ok && len(monitor.Spec.PodMetricsEndpoints) == 1, "the PodMonitor is %v", monitor)
	app := leader.Labels["app"]
	if app == "" || !maps.Equal(monitor.Spec.Selector.MatchLabels, map[string]string{"app": app, lws.WorkerIndexLabelKey: "0"}) {
		t.Errorf("the PodMonitor selects %v: want the leaders of canaries, too", monitor.Spec.Selector.MatchLabels)
	}
	assert.True(t, slices.Equal(monitor.Spec.PodTargetLabels, []string{lws.SetNameLabelKey, lws.RevisionKey}),
		"the PodMonitor adds the labels %v, want those of gates", monitor.Spec.PodTargetLabels)
	for _, port := range []string{service.Spec.Ports[0].TargetPort.StrVal, monitor.Spec.PodMetricsEndpoints[0].Port} {
		assert.True(t, slices.ContainsFunc(leader.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == port }),
			"leaders have no port %q", port)
	}
}

// mustMeasureTheWorkload checks that the analysis selects pods by workload and revision, as gates do: those of other workloads may have the same
// revision.
func mustMeasureTheWorkload(t *testing.T, server string) {
	t.Helper()
	objects := decode(t, build(t, server, "argo")...)
	analysis, isAnalysis := objects["AnalysisTemplate "+server+"-canary"].(*argo.AnalysisTemplate)
	rollout, isRollout := objects["Rollout "+server].(*argo.Rollout)
	require.True(t, isAnalysis && isRollout, "no analysis and Rollout of %s", server)
	for _, m := range analysis.Spec.Metrics {
		query := m.Provider.Prometheus.Query
		revisions := strings.Count(query, `leaderworkerset_sigs_k8s_io_template_revision_hash="{{args.`)
		names := strings.Count(query, `namespace="{{args.namespace}}",leaderworkerset_sigs_k8s_io_name=~"{{args.workload}}(-[^aeiou-]{6})?",leaderworkerset_sigs`)
		assert.True(t, revisions > 0 && names == revisions, "%s: %d revisions, %d of the workload alone:\n%s", m.Name, revisions, names, query)
	}
	workload := argo.AnalysisRunArgument{Name: "workload", Value: server}
	assert.Contains(t, rollout.Spec.Strategy.Canary.Steps[1].Analysis.Args, workload, "the Rollout's analysis")
}

// The GitOps tools can apply each server with each host, in the namespace that they name.
func TestGitOps(t *testing.T) {
	t.Parallel()
	app, flux := gitOps(t)
	assert.Equal(t, app.Spec.Destination.Namespace, app.Spec.Source.Kustomize.Namespace,
		"Argo CD builds for namespace %q, and applies to %q", app.Spec.Source.Kustomize.Namespace, app.Spec.Destination.Namespace)
	got, want := flux.Spec.HealthChecks, []map[string]string{{
		"apiVersion": lws.GroupVersion.String(), "kind": "LeaderWorkerSet", "name": flux.Name, "namespace": flux.Spec.TargetNamespace,
	}}
	assert.True(t, cmp.Equal(got, want), "Flux checks the health of %v, want %v", got, want)
	assert.True(t, slices.Contains(app.Spec.SyncPolicy.SyncOptions, "RespectIgnoreDifferences=true"),
		"Argo CD reverts ignored fields in a sync for another reason")
	page := files.Read(t, source("gitops", "README.md"))
	for _, server := range modelservers.Names() {
		assert.Contains(t, string(page), "](../"+server+")", "gitops/README.md does not name %s", server)
		for _, overlay := range modelservers.Overlays() {
			t.Run(server+"/"+overlay, func(t *testing.T) {
				t.Parallel()
				for tool, namespace := range map[string]string{"Argo CD": app.Spec.Source.Kustomize.Namespace, "Flux": flux.Spec.TargetNamespace} {
					mustBeIn(t, tool, namespace, server, overlay)
				}
				mustLeaveFields(t, app, flux, server, overlay)
			})
		}
	}
}

// gitOps reads the examples. Each folder that they name, also in a comment, exists.
func gitOps(t *testing.T) (*application, *fluxKustomization) {
	t.Helper()
	objects := map[string]any{}
	for _, file := range []string{"gitops/argo-cd.yaml", "gitops/flux.yaml"} {
		text := files.Read(t, source(file))
		maps.Copy(objects, decode(t, strings.Split(string(text), "\n---\n")...))
		for _, path := range regexp.MustCompile(`examples/[a-z-]+/[a-z]+`).FindAllString(string(text), -1) {
			_, err := os.Stat(source("..", path, "kustomization.yaml"))
			assert.NoError(t, err, file)
		}
	}
	app, isApp := objects["Application vllm"].(*application)
	flux, isFlux := objects["Kustomization vllm"].(*fluxKustomization)
	require.True(t, isApp && isFlux, "gitops/ has no Application, or no Kustomization")
	for _, path := range []string{app.Spec.Source.Path, strings.TrimPrefix(flux.Spec.Path, "./")} {
		assert.Equal(t, "examples/vllm/argo", path, "the path")
	}
	return app, flux
}

// mustBeIn builds an overlay as a GitOps tool does for a namespace. All objects are in it, and what they refer to.
func mustBeIn(t *testing.T, tool, namespace, server, overlay string) {
	t.Helper()
	dir := t.TempDir()
	examples, err := filepath.Abs(source())
	require.NoError(t, err)
	base, err := filepath.Rel(dir, filepath.Join(examples, server, overlay))
	require.NoError(t, err)
	kustomization := "namespace: " + namespace + "\nresources: [" + base + "]\n"
	files.Write(t, filepath.Join(dir, "kustomization.yaml"), []byte(kustomization))
	documents, err := modelservers.Build(dir, "", "")
	require.NoError(t, err)
	for name, object := range decode(t, documents...) {
		if meta, ok := object.(metav1.Object); ok && meta.GetNamespace() != namespace {
			t.Errorf("%s: %s is in namespace %q, want %q", tool, name, meta.GetNamespace(), namespace)
		}
		if binding, ok := object.(*rbacv1.RoleBinding); ok && binding.Subjects[0].Namespace != namespace {
			t.Errorf("%s: %s is for an account in namespace %q, want %q", tool, name, binding.Subjects[0].Namespace, namespace)
		}
	}
}

// mustLeaveFields checks that the tools ignore what a release with an overlay writes to objects of Git.
func mustLeaveFields(t *testing.T, app *application, flux *fluxKustomization, server, overlay string) {
	t.Helper()
	routers := []string{"lockstep"} // the field managers of routes and Services
	if overlay == "kruise" {
		routers = append(routers, "kruise-rollout")
	}
	objects := decode(t, build(t, server, overlay)...)
	for kind, written := range map[string]struct {
		group, name, field string
		managers           []string
	}{
		"LeaderWorkerSet": {lws.GroupVersion.Group, server, "/spec/rolloutStrategy/rollingUpdateConfiguration", []string{"lockstep"}},
		"HTTPRoute":       {gateway.GroupVersion.Group, server, "/spec/rules", routers},
		"Service":         {"", server + "-leader", "/spec/selector", routers},
	} {
		assert.True(t, objects[kind+" "+written.name] != nil, "there is no %s %s", kind, written.name)
		ignored := false
		for _, rule := range app.Spec.IgnoreDifferences {
			all := slices.Contains(rule.JSONPointers, written.field) || !slices.ContainsFunc(written.managers, func(manager string) bool {
				return !slices.Contains(rule.ManagedFieldsManagers, manager)
			})
			ignored = ignored || rule.Group == written.group && rule.Kind == kind && all
		}
		assert.True(t, ignored, "Argo CD reverts what %v write to %s %s", written.managers, kind, written.name)
		assert.True(t, slices.ContainsFunc(flux.Spec.Ignore, func(rule fluxIgnore) bool {
			return rule.Target.Group == written.group && rule.Target.Kind == kind && slices.Contains(rule.Paths, written.field) &&
				(rule.Target.Name == "" || rule.Target.Name == written.name)
		}), "Flux reverts %s of %s %s", written.field, kind, written.name)
	}
}
