// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

// addProblems creates objects that preflight reports for a workload.
func (e *env) addProblems(name string) {
	e.t.Helper()
	meta, pods := metav1.ObjectMeta{Name: name}, map[string]string{lws.SetNameLabelKey: name}
	_, errService := e.kube.CoreV1().Services(e.namespace).Create(e.t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: corev1.ServiceSpec{
		Selector: pods, Ports: []corev1.ServicePort{{Port: 80}},
	}}, metav1.CreateOptions{})
	_, errBudget := e.kube.PolicyV1().PodDisruptionBudgets(e.namespace).Create(e.t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: pods},
	}}, metav1.CreateOptions{})
	_, errScaler := e.kube.AutoscalingV2().HorizontalPodAutoscalers(e.namespace).Create(e.t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: meta, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			MinReplicas: ptr.To[int32](4), MaxReplicas: 4,
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: lws.GroupVersion.String(), Kind: "LeaderWorkerSet", Name: name},
		},
	}, metav1.CreateOptions{})
	_, errClaim := e.kube.CoreV1().PersistentVolumeClaims(e.namespace).Create(e.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "weights"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(e.t, errors.Join(errService, errBudget, errScaler, errClaim))
}

// mountWeights mounts the volume of addProblems in every pod.
func mountWeights(w *lws.LeaderWorkerSet) {
	for _, t := range templates(w) {
		t.Spec.Volumes = []corev1.Volume{{Name: "weights", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "weights"},
		}}}
	}
}

// wellConfigured adds a readiness probe, a preStop hook and a topology spread constraint, and removes the volume.
func wellConfigured(w *lws.LeaderWorkerSet) {
	spec := &w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec
	spec.TerminationGracePeriodSeconds = ptr.To[int64](40)
	spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(8000)}}}
	spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 10}}}
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway}}
	spec.Volumes = nil
}

// awaitPreflight waits until exactly these rules have findings and exactly these subjects are unchecked: caches lag.
func (w *workload) awaitPreflight(request *pb.PreflightRequest, wantRules, wantUnchecked string) *pb.PreflightResponse {
	w.t.Helper()
	var r *pb.PreflightResponse
	w.eventually("preflight has the findings", func(context.Context) error {
		var rules, unchecked string
		if r, rules, unchecked = w.preflight(request); rules != wantRules || unchecked != wantUnchecked {
			return fmt.Errorf("found\n%s\nwant\n%s\nunchecked: %s, want %s", rules, wantRules, unchecked, wantUnchecked)
		}
		return nil
	})
	return r
}

// preflight calls Preflight, and returns the rules with findings and the unchecked subjects.
func (w *workload) preflight(request *pb.PreflightRequest) (r *pb.PreflightResponse, rules, unchecked string) {
	w.t.Helper()
	request.Workload = w.ref()
	r, err := w.driver.Preflight(w.t.Context(), request)
	require.NoError(w.t, err, "Preflight")
	found, subjects := []string{}, []string{}
	for _, f := range r.GetFindings() {
		found = append(found, f.GetRule())
	}
	for _, u := range r.GetUnchecked() {
		subjects = append(subjects, u.GetSubject())
	}
	slices.Sort(found)
	return r, strings.Join(slices.Compact(found), " "), strings.Join(subjects, ", ")
}

// With the permissions of config/base preflight reports problems and what it may not read, and writes nothing; with those of
// config/preflight it checks nodes and volumes, too. Plan and Initialize report the same findings.
//
// Proves (test): Preflight under the shipped RBAC; preflight, plan and status as a reader.
func TestPreflight(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 4, 2, rolling("100%", "0", -1)))
	e.addProblems("model")
	e.limitGPUs("2", "0")
	w.edit(image("v2"), gpus("100"), mountWeights) // no node has 100
	request := func() *pb.PreflightRequest { return &pb.PreflightRequest{Policy: policy("25%", "50%")} }
	before := w.writes()
	r := w.awaitPreflight(request(), "AllUnavailable BudgetBlocksEviction PreStopMissing QuotaExceeded "+
		"ReadinessProbeMissing ServiceSelectsWorkers", "PersistentVolumeClaims, nodes, the longest request")
	for _, u := range r.GetUnchecked()[:2] {
		w.mustContain(u.GetReason(), "forbidden", driver.User, "config/preflight")
	}
	if first := r.GetFindings()[0]; first.GetRule() != "AllUnavailable" || first.GetObject().GetName() != "model" || !strings.HasSuffix(first.GetField(), ".maxUnavailable") {
		t.Errorf("first finding: %v", first)
	}
	after := w.writes()
	assert.True(t, slices.Equal(before, after), "preflight wrote: %v, before %v", after, before)
	w.mustReportFindings(policy("25%", "50%"))
	w.preflightCommand()

	permitted := w.withDriver(driver.Start(t, e.preflightKubeconfig(), e.namespace))
	r = permitted.awaitPreflight(request(), "AllUnavailable BudgetBlocksEviction NodesLackCapacity PreStopMissing "+
		"QuotaExceeded ReadinessProbeMissing ServiceSelectsWorkers VolumeReadWriteOnce", "the longest request")
	i := slices.IndexFunc(r.GetFindings(), func(f *pb.Finding) bool { return f.GetRule() == "NodesLackCapacity" })
	w.mustContain(r.GetFindings()[max(i, 0)].GetMessage(), "2 groups (4 pods)", "room for 0", "nvidia.com/gpu")
	w.edit(gpus("1"), wellConfigured)
	permitted.awaitPreflight(request(), "AllUnavailable BudgetBlocksEviction QuotaExceeded ServiceSelectsWorkers", "the longest request")
}

// mustReportFindings fails unless Plan has the findings besides its warnings, and Initialize warns of each once.
func (w *workload) mustReportFindings(p *pb.ReleasePolicy) {
	w.t.Helper()
	r := w.plan(p)
	var rules []string
	for _, f := range r.GetFindings() {
		rules = append(rules, f.GetRule())
	}
	slices.Sort(rules)
	assert.Equal(w.t, "AllUnavailable PreStopMissing ReadinessProbeMissing ServiceSelectsWorkers", strings.Join(rules, " "),
		"the plan finds")
	begun := w.initialize("r1", p)
	codes := warningCodes(begun.GetWarnings())
	slices.Sort(codes)
	assert.Equal(w.t, "AllUnavailable AutoscalerHeld BudgetBlocksEviction ExtraCapacity PreStopMissing QuotaExceeded ReadinessProbeMissing ServiceSelectsWorkers", strings.Join(codes, " "),
		"Initialize warns of")
	w.mustContain(warning(begun, "ServiceSelectsWorkers"), "4 of the 8 pods", "worker-index")
	w.finalize("r1", rollback)
}

// preflightCommand checks the command's exit code for --fail-on, and its outputs.
func (w *workload) preflightCommand() {
	w.t.Helper()
	for failOn, want := range map[string]int{"error": 5, "never": 0} {
		out, code := w.lockstep("preflight", "model", "--batches", "50%", "--fail-on", failOn)
		assert.Equal(w.t, want, code, "--fail-on %s: exit code %d, want %d\n%s", failOn, code, want, out)
		w.mustContain(out, "[AllUnavailable]", "LeaderWorkerSet "+w.namespace+"/model, spec.", "(needs nodes)")
	}
	out, _ := w.lockstep("preflight", "model", "-o", "json", "--fail-on", "never")
	w.mustContain(out, `PreStopMissing`)
}

// toDriver adds the flags with which a command calls the test's driver.
func (w *workload) toDriver(args ...string) []string {
	return append(args, "--address", w.driver.Address(), "--namespace", w.namespace)
}

// run runs a command of lockstep to its end.
func (e *env) run(args ...string) (stdout, stderr string, code int) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 2*await.Patience)
	defer cancel()
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, driver.Path(e.t), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		_, ended := errors.AsType[*exec.ExitError](err)
		require.True(e.t, ended, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// lockstep is run with the test's driver.
func (w *workload) lockstep(args ...string) (stdout string, code int) {
	w.t.Helper()
	stdout, stderr, code := w.run(w.toDriver(args...)...)
	w.t.Logf("lockstep %s: %s", args[0], stderr)
	return stdout, code
}

// A user who may only read tries preflight, plan and status. Without LeaderWorkerSets the error says what to ask for, and nothing else
// is printed.
//
// Proves (test): Preflight under the shipped RBAC; preflight, plan and status as a reader.
func TestPreflightByReader(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.deploy(model("vllm", 4, 2))
	kubeconfig := e.account("reader")
	e.bind("RoleBinding", "reader", "ClusterRole", "view")
	commands := [][]string{{"preflight", "vllm"}, {"plan", "vllm", "--batches", "25%,100%"}, {"status", "vllm"}}
	run := func(args []string) (string, string, int) {
		return e.run(append(args, "--kubeconfig", kubeconfig, "--namespace", e.namespace)...)
	}
	for _, args := range commands {
		stdout, stderr, code := run(args)
		assert.True(t, code == 1 && stdout == "" && !strings.Contains(stderr, "level="), "lockstep %s: %d\n%s%s", args[0], code, stdout, stderr)
		for _, want := range []string{`may not list and watch leaderworkersets`, `in the namespace "` + e.namespace + `"`, "your own permissions", "--address"} {
			assert.Contains(t, stderr, want, "lockstep %s", args[0])
		}
	}

	sets := []rbacv1.PolicyRule{{APIGroups: []string{lws.GroupVersion.Group}, Resources: []string{"leaderworkersets"}, Verbs: []string{"get", "list", "watch"}}}
	tenant.Account(t, e.cluster, e.namespace, "sets", map[string][]rbacv1.PolicyRule{e.namespace: sets})
	e.bind("RoleBinding", "reader", "Role", "sets")
	for _, args := range commands {
		e.eventually("lockstep "+args[0]+" succeeds", func(context.Context) error {
			if _, stderr, code := run(args); code != 0 {
				return errors.New(stderr)
			}
			return nil
		})
	}
}

// preflightKubeconfig returns the kubeconfig of a new service account with the permissions of config/base and config/preflight.
func (e *env) preflightKubeconfig() string {
	e.t.Helper()
	manifest, err := deploy.Preflight()
	require.NoError(e.t, err)
	role, _, _ := bytes.Cut(manifest, []byte("---\n"))
	require.NoError(e.t, e.cluster.Apply(e.t.Context(), e.namespace, role))
	kubeconfig := e.account("preflight")
	for _, name := range []string{"lockstep-driver", "lockstep-preflight"} {
		e.bind("ClusterRoleBinding", "preflight", "ClusterRole", name)
	}
	return kubeconfig
}

// bind binds a role to an account of this namespace.
func (e *env) bind(kind, account, of, role string) {
	e.t.Helper()
	require.NoError(e.t, e.cluster.Apply(e.t.Context(), e.namespace, fmt.Appendf(nil, `apiVersion: rbac.authorization.k8s.io/v1
kind: %s
metadata: {name: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %s, name: %s}
subjects: [{kind: ServiceAccount, namespace: %s, name: %s}]
`, kind, e.namespace+"-"+role, of, role, e.namespace, account)))
}

// A release matches its plan at each step, and planning writes nothing.
//
// Proves (test, canary): Plan predicts the release, and writes nothing; undo restores a template that LWS no longer has.
// Proves: Plan in each style.
func TestPlan(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]*pb.ReleasePolicy{
		"canary": policy("25%", "50%", "100%"), "partition": inPlace("25%", "50%", "100%"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, begun := newEnv(t), time.Now()
			w := e.adopt(model("model", 4, 2, gpus("1"), annotated(cluster.AnnotationWarmup, "2s"), rolling("1", "0", -1)))
			w.edit(image("v2"), gpus("2"))
			w.await("the new template is known", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })
			before := w.get()
			r := w.plan(policy)
			// LWS may write the status meanwhile.
			if after := w.get(); after.Generation != before.Generation || !maps.Equal(after.Annotations, before.Annotations) {
				t.Errorf("the plan wrote: %s, then %s", asJSON(before.ObjectMeta), asJSON(after.ObjectMeta))
			}
			// The API's times are whole seconds.
			if took := r.GetStartup().AsDuration(); took < time.Second || took > time.Since(begun)+time.Second || r.GetStartupGroups() != 4 {
				t.Errorf("start-up %s of %d groups, want at least 2s of 4", took, r.GetStartupGroups())
			}
			require.True(t, len(r.GetSteps()) == 4 && len(r.GetBlockers()) == 0, "steps %v, blockers %v", r.GetSteps(), r.GetBlockers())
			w.initialize("r1", policy)
			for batch, step := range r.GetSteps()[:3] {
				w.upgrade("r1", int32(batch))
				w.mustMatchStep(step, w.awaitState(pb.State_STATE_READY))
			}
			codes := warningCodes(w.plan(policy).GetBlockers())
			assert.True(t, slices.Contains(codes, "ReleaseInProgress"), "blockers in mid-release: %v", codes)
			w.finalize("r1", promote)
			w.mustMatchStep(r.GetSteps()[3], w.awaitState(pb.State_STATE_COMPLETED))
			mustPlanGPUs(t, name, r)
		})
	}
}

// mustPlanGPUs fails unless the steps need these extra GPUs: 8 pods run with 1 GPU each, pods of the new template request 2.
func mustPlanGPUs(t *testing.T, style string, r *pb.PlanResponse) {
	t.Helper()
	want := map[string][]string{"canary": {"4", "8", "16", "24"}, "partition": {"2", "4", "8", "8"}}[style]
	for i, step := range r.GetSteps() {
		got := step.GetExtraResources()["nvidia.com/gpu"]
		assert.Equal(t, want[i], got, "%s: %s extra GPUs, want %s", step.GetName(), got, want[i])
	}
}

// plan calls Plan.
func (w *workload) plan(policy *pb.ReleasePolicy) *pb.PlanResponse {
	w.t.Helper()
	r, err := w.driver.Plan(w.t.Context(), &pb.PlanRequest{Workload: w.ref(), Policy: policy})
	require.NoError(w.t, err, "Plan")
	return r
}

func warningCodes(warnings []*pb.Warning) []string {
	codes := make([]string, 0, len(warnings))
	for _, w := range warnings {
		codes = append(codes, w.GetCode())
	}
	return codes
}

// mustMatchStep fails unless the context has the groups of the planned step.
func (w *workload) mustMatchStep(step *pb.PlanStep, c *pb.BatchContext) {
	w.t.Helper()
	assert.True(w.t, c.GetStableReady() == step.GetStableGroups() && c.GetUpdatedReady() == step.GetCanaryGroups() && c.GetTotal() == step.GetReadyGroups(),
		"%s: stable %d, updated %d of %d groups; planned %d, %d of %d", step.GetName(), c.GetStableReady(), c.GetUpdatedReady(), c.GetTotal(), step.GetStableGroups(), step.GetCanaryGroups(), step.GetReadyGroups())
}
