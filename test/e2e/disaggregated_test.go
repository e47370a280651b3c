// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

var (
	scalersResource  = schema.GroupVersionResource{Group: "disaggregatedset.x-k8s.io", Version: "v1", Resource: "disaggregatedsetrolescalers"}
	roleSetsResource = schema.GroupVersionResource{Group: "disaggregatedset.x-k8s.io", Version: "v1", Resource: "disaggregatedsets"}
	boundsResource   = schema.GroupVersionResource{Group: "lockstep.dev", Version: "v1alpha1", Resource: "replicabounds"}
)

// roleSet is a DisaggregatedSet under test, with roles prefill and decode.
type roleSet struct {
	*workload
	*suite.Roles
}

// newRoleSet creates a DisaggregatedSet llm in a namespace of its own, whose pods have these annotations, and returns once its groups are ready.
func newRoleSet(t *testing.T, prefill, decode int32, annotations ...string) *roleSet {
	t.Helper()
	start := func(e *env) *driver.Driver { return driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace) }
	return newRoleSetOf(t, prefill, decode, start, annotations...)
}

// newRoleSetOf is newRoleSet with a driver of the test's own.
func newRoleSetOf(t *testing.T, prefill, decode int32, start func(*env) *driver.Driver, annotations ...string) *roleSet {
	t.Helper()
	e := newEnvIn(t, cluster.Shared(t))
	suite.InstallRoles(t, e.cluster)
	e.observer.waive(ruleHold) // its rules are those of a LeaderWorkerSet's hold
	e.driver = start(e)
	return rolesIn(e, prefill, decode, annotations...)
}

// rolesIn creates the set in an environment whose driver runs.
func rolesIn(e *env, prefill, decode int32, annotations ...string) *roleSet {
	e.t.Helper()
	roles := &suite.Roles{T: e.t, Cluster: e.cluster, Namespace: e.namespace, Name: "llm"}
	s := &roleSet{&workload{env: e, driver: e.driver, name: "llm", kind: "DisaggregatedSet"}, roles}
	s.create(prefill, decode, annotations...)
	s.Await("v1", prefill, decode)
	return s
}

func (s *roleSet) sets() dynamic.ResourceInterface {
	return s.dynamic.Resource(roleSetsResource).Namespace(s.namespace)
}

func (s *roleSet) create(prefill, decode int32, annotations ...string) {
	s.t.Helper()
	suite.Apply(s.t, s.cluster, s.namespace, suite.RolesManifest(s.name, prefill, decode, func(string) string {
		return `{metadata: {annotations: {` + strings.Join(annotations, ", ") + `}},
          spec: {terminationGracePeriodSeconds: 1, containers: [{name: server, image: "example.com/model:v1"}]}}`
	}))
}

// edit changes the set as a user does.
func (s *roleSet) edit(change func(*disaggregated.DisaggregatedSet)) {
	s.t.Helper()
	s.eventually("the edit", func(ctx context.Context) error {
		have, err := s.sets().Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var set disaggregated.DisaggregatedSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(have.Object, &set); err != nil {
			return err
		}
		change(&set)
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&set)
		if err == nil {
			keepNewer(have.Object, object)
			_, err = s.sets().Update(ctx, &unstructured.Unstructured{Object: object}, metav1.UpdateOptions{FieldManager: "kubectl"})
		}
		return err
	})
}

// keepNewer copies the slices, and how roles are scaled: the Go types of LWS v0.9.0 lack both.
func keepNewer(from, to map[string]any) {
	if n, found, _ := unstructured.NestedInt64(from, "spec", "slices"); found {
		_ = unstructured.SetNestedField(to, n, "spec", "slices")
	}
	before, _, _ := unstructured.NestedSlice(from, "spec", "roles")
	after, _, _ := unstructured.NestedSlice(to, "spec", "roles")
	for i, role := range after[:min(len(before), len(after))] {
		if scaling, found, _ := unstructured.NestedMap(before[i].(map[string]any), "scaling"); found {
			role.(map[string]any)["scaling"] = scaling
		}
	}
	_ = unstructured.SetNestedSlice(to, after, "spec", "roles")
}

// setImage gives all roles a template with an image.
func (s *roleSet) setImage(tag string) {
	s.t.Helper()
	s.edit(func(set *disaggregated.DisaggregatedSet) {
		for i := range set.Spec.Roles {
			set.Spec.Roles[i].Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = "example.com/model:" + tag
		}
	})
}

// scale changes the groups of roles in the spec.
func (s *roleSet) scale(prefill, decode int32) {
	s.t.Helper()
	s.edit(func(set *disaggregated.DisaggregatedSet) {
		set.Spec.Roles[0].Spec.Replicas, set.Spec.Roles[1].Spec.Replicas = ptr.To(prefill), ptr.To(decode)
	})
}

// awaitState waits for a state of the set.
func (s *roleSet) awaitState(want pb.State, reason string) *pb.BatchContext {
	s.t.Helper()
	return s.await(fmt.Sprintf("state %s %s", want, reason), func(c *pb.BatchContext) bool {
		return c.GetState() == want && (reason == "" || c.GetReason() == reason)
	})
}

// adopt adopts the set, and waits until its children have bounds and the API server enforces them.
func (s *roleSet) adopt() {
	s.t.Helper()
	s.eventually("adoption", func(ctx context.Context) error {
		_, err := s.driver.Adopt(ctx, &pb.AdoptRequest{Workload: s.ref()})
		return err
	})
	s.eventually("the bounds", func(ctx context.Context) error {
		_, err := s.dynamic.Resource(boundsResource).Namespace(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
		return err
	})
	s.eventually("the policy is in force", func(ctx context.Context) error {
		found, err := s.Children(ctx, "v1")
		if err != nil {
			return err
		}
		if err := s.dryScale(ctx, found["prefill"].Name, 0); err == nil {
			return errors.New("a child may be scaled below its bounds")
		}
		return nil
	})
}

// dryScale tries to set the groups of a LeaderWorkerSet, or those in its scale.
func (s *roleSet) dryScale(ctx context.Context, name string, groups int, scale ...string) error {
	_, err := s.dynamic.Resource(setsResource).Namespace(s.namespace).Patch(ctx, name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, groups), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, scale...)
	return err
}

// awaitHeld waits until the children with a tag exist without groups, and may get none. LeaderWorkerSet passes through children without groups also
// where nothing holds them.
func (s *roleSet) awaitHeld(tag string) {
	s.t.Helper()
	s.Await(tag, 0, 0)
	s.eventually("no child at "+tag+" may get groups", func(ctx context.Context) error {
		found, err := s.Children(ctx, tag)
		if err != nil {
			return err
		}
		for role, child := range found {
			if err := s.dryScale(ctx, child.Name, 1); err == nil || !strings.Contains(err.Error(), "Lockstep's hold") {
				return fmt.Errorf("%s: %w", role, err)
			}
		}
		return s.Check(ctx, tag, 0, 0)
	})
}

// mustKeep fails if the leader of one of these groups was replaced.
func (s *roleSet) mustKeep(tag string, before map[string]types.UID) {
	s.t.Helper()
	assert.Subset(s.t, s.Leaders(tag), before, "groups were started again")
}

// mustStay fails if a group with a tag was replaced, removed or added.
func (s *roleSet) mustStay(tag string, before map[string]types.UID) {
	s.t.Helper()
	assert.Equal(s.t, before, s.Leaders(tag), "the leaders at %s", tag)
}

// TestDisaggregatedHeld: an edited template creates children without groups, and nothing else. Roles are scaled under the hold as without it.
// The first template again leaves nothing behind. Disown lets LWS roll.
//
// Proves (smoke): A DisaggregatedSet is held for every client, and scaled, edited and disowned under the hold.
func TestDisaggregatedHeld(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 4, 2)
	s.adopt()
	s.awaitState(pb.State_STATE_HOLDING, "Held")
	s.mustPrint([]string{"ok lockstep-bounds DisaggregatedSets can be adopted"}, "check", "--kubeconfig", s.cluster.Kubeconfig())

	s.setImage("v2")
	s.awaitHeld("v2")
	c := s.awaitState(pb.State_STATE_HOLDING, "NewRevisionWaits")
	if roles := c.GetRoles(); len(roles) != 2 || roles[0].GetStableReady() != 4 || roles[1].GetStableReady() != 2 || c.GetStableReady() != 4 {
		t.Errorf("the context has roles %v and %d stable units ready", roles, c.GetStableReady())
	}

	s.scale(5, 1)
	s.Await("v1", 5, 1)
	s.scale(4, 2)
	s.Await("v1", 4, 2)

	s.setImage("v3")
	s.awaitHeld("v3")
	s.Await("v2", -1, -1)
	s.refuses()

	s.setImage("v1")
	s.Await("v3", -1, -1)
	s.awaitState(pb.State_STATE_HOLDING, "Held")
	s.Await("v1", 4, 2)

	s.setImage("v4")
	s.awaitHeld("v4")
	s.disown(s.ref())
	s.wake()
	s.Await("v4", 4, 2)
	s.Await("v1", -1, -1)
}

// TestDisaggregatedGroupFails: LWS makes a group that fails again at its own revision, also while another template waits.
//
// Proves (test): A DisaggregatedSet is held for every client, and scaled, edited and disowned under the hold.
func TestDisaggregatedGroupFails(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 1, 2)
	s.observer.waive(ruleRoles) // the test itself deletes a leader
	s.adopt()
	s.setImage("v2")
	s.awaitHeld("v2")
	before := s.Leaders("v1")
	for name := range before {
		require.NoError(t, s.kube.CoreV1().Pods(s.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	s.eventually("the groups are made again", func(context.Context) error {
		after := s.Leaders("v1")
		for name, uid := range before {
			if after[name] == "" || after[name] == uid {
				return errNotYet
			}
		}
		return nil
	})
	s.Await("v1", 1, 2)
	s.awaitHeld("v2")
}

// wake has LWS reconcile the set: it tries again late what the bounds refused before they were deleted.
func (s *roleSet) wake() {
	s.t.Helper()
	s.edit(func(set *disaggregated.DisaggregatedSet) {
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, "example.com/woken", "true")
	})
}

// refuses tries to scale children past their bounds, in every way that clients have.
func (s *roleSet) refuses() {
	s.t.Helper()
	ctx, sets := s.t.Context(), s.lws.LeaderworkersetV1().LeaderWorkerSets(s.namespace)
	stable, err := s.Children(ctx, "v1")
	require.NoError(s.t, err)
	waiting, err := s.Children(ctx, "v3")
	require.NoError(s.t, err)
	relabel := fmt.Sprintf(`{"metadata":{"labels":{%q:"other"}},"spec":{"replicas":0}}`, disaggregated.SetNameLabelKey)
	forged := waiting["prefill"].DeepCopy()
	forged.ObjectMeta = metav1.ObjectMeta{Name: "forged", Labels: waiting["prefill"].Labels}
	forged.Spec.Replicas = ptr.To[int32](1)
	// A role that only the template that waits has.
	added := forged.DeepCopy()
	added.Labels[disaggregated.RoleLabelKey] = "embed"
	added.Name, added.Spec.Replicas = s.name+"-"+added.Labels[disaggregated.RevisionLabelKey]+"-embed", ptr.To[int32](0)
	_, err = sets.Create(ctx, added, metav1.CreateOptions{})
	require.NoError(s.t, err)
	plain := model("plain", 0, 2, rolling("1", "0", 0))
	_, err = sets.Create(ctx, plain, metav1.CreateOptions{})
	require.NoError(s.t, err)
	dryPatch := func(name string, kind types.PatchType, patch string) error {
		_, err := sets.Patch(ctx, name, kind, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	dryRun := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	for what, err := range map[string]error{
		"a stable child is deleted":                            sets.Delete(ctx, stable["decode"].Name, dryRun),
		"a stable child is scaled below":                       s.dryScale(ctx, stable["decode"].Name, 1),
		"a waiting child is scaled":                            s.dryScale(ctx, waiting["decode"].Name, 1),
		"a stable child's scale is set below":                  s.dryScale(ctx, stable["prefill"].Name, 3, "scale"),
		"a waiting child's scale is set":                       s.dryScale(ctx, waiting["prefill"].Name, 1, "scale"),
		"the scale of a waiting child of an added role is set": s.dryScale(ctx, added.Name, 1, "scale"),
		"a stable child is taken out of bounds":                dryPatch(stable["decode"].Name, types.MergePatchType, relabel),
		"a child is created with groups":                       func() error { _, err := sets.Create(ctx, forged, metav1.CreateOptions{}); return err }(),
		"another one is made a child":                          dryPatch(plain.Name, types.MergePatchType, fmt.Sprintf(`{"metadata":{"labels":%s}}`, asJSON(forged.Labels))),
		"a stable child gets another template": dryPatch(stable["prefill"].Name, types.JSONPatchType,
			`[{"op":"replace","path":"/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":"example.com/model:v3"}]`),
		"a stable child's leaders get another topology": dryPatch(stable["prefill"].Name, types.MergePatchType,
			fmt.Sprintf(`{"metadata":{"annotations":{%q:"rack"}}}`, lws.ExclusiveKeyAnnotationKey)),
		"a stable child gets another owner": dryPatch(stable["prefill"].Name, types.JSONPatchType, `[{"op":"replace","path":"/metadata/ownerReferences/0/uid","value":"none"}]`),
		"a stable child loses its owner":    dryPatch(stable["prefill"].Name, types.MergePatchType, `{"metadata":{"ownerReferences":null}}`),
		"a stable child gets other names":   dryPatch(stable["prefill"].Name, types.MergePatchType, `{"spec":{"networkConfig":{"subdomainPolicy":"UniquePerReplica"}}}`),
	} {
		assert.ErrorContains(s.t, err, "Lockstep's hold", what)
	}
	assert.NoError(s.t, errors.Join(dryPatch(plain.Name, types.MergePatchType, `{"metadata":{"labels":{"a":"b"}},"spec":{"replicas":1}}`),
		dryPatch(stable["prefill"].Name, types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`),
		sets.Delete(ctx, waiting["prefill"].Name, dryRun), sets.Delete(ctx, added.Name, metav1.DeleteOptions{})))
	// They delete it with the set, or with the namespace, with credentials of their own or those of the controller manager.
	for _, user := range []string{
		"system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccount:kube-system:namespace-controller", "system:kube-controller-manager",
	} {
		config := s.cluster.RESTConfig()
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		children := lwsclient.NewForConfigOrDie(config).LeaderworkersetV1().LeaderWorkerSets(s.namespace)
		assert.NoError(s.t, children.Delete(ctx, stable["decode"].Name, dryRun), user)
		bounds := dynamic.NewForConfigOrDie(config).Resource(boundsResource).Namespace(s.namespace)
		assert.NoError(s.t, bounds.Delete(ctx, s.name, dryRun), user)
	}
	for _, value := range []string{`"true"`, "null"} { // as a message asks for where a child is missing
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"lockstep.dev/deletable":%s}}}`, value)
		_, err := sets.Patch(ctx, stable["decode"].Name, types.MergePatchType, patch, metav1.PatchOptions{})
		require.NoError(s.t, err)
		err = sets.Delete(ctx, stable["decode"].Name, dryRun)
		assert.Equal(s.t, value != "null", err == nil, "a child whose deletion is confirmed by %s is deleted: %v", value, err)
	}
}

// begin begins a release of the set.
func (s *roleSet) begin(id string, style pb.Style, batches ...string) {
	s.t.Helper()
	s.beginWith(id, &pb.ReleasePolicy{Style: style, Batches: batches})
}

func (s *roleSet) beginWith(id string, policy *pb.ReleasePolicy) {
	s.t.Helper()
	s.eventually("the release begins", func(ctx context.Context) error {
		_, err := s.driver.Initialize(ctx, &pb.InitializeRequest{Workload: s.ref(), ReleaseId: id, Owner: "test", Policy: policy})
		return err
	})
}

// expose creates an Ingress, and the Service that selects the leaders of decode.
func (s *roleSet) expose() {
	s.t.Helper()
	s.exposeBy(s.name, map[string]string{disaggregated.SetNameLabelKey: s.name, disaggregated.RoleLabelKey: "decode", lws.WorkerIndexLabelKey: "0"})
}

// service returns the selector of the Service of requests.
func (s *roleSet) service() map[string]string {
	s.t.Helper()
	service := suite.Get(s.t.Context(), s.t, s.kube.CoreV1().Services(s.namespace), s.name+"-http")
	return service.Spec.Selector
}

// upgrade asks for a batch, and waits until it is ready.
func (s *roleSet) upgrade(id string, batch int32) *pb.BatchContext {
	s.t.Helper()
	s.eventually(fmt.Sprintf("batch %d", batch), func(ctx context.Context) error {
		_, err := s.driver.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
			Workload: s.ref(), ReleaseId: id, Target: &pb.UpgradeBatchRequest_Batch{Batch: batch},
		})
		return err
	})
	return s.awaitState(pb.State_STATE_READY, "BatchReady")
}

// finalize promotes the release or rolls it back, and waits for its end.
func (s *roleSet) finalize(id string, intent pb.FinalizeIntent) {
	s.t.Helper()
	s.eventually(intent.String(), func(ctx context.Context) error {
		_, err := s.driver.Finalize(ctx, &pb.FinalizeRequest{Workload: s.ref(), ReleaseId: id, Intent: intent})
		return err
	})
	want := pb.State_STATE_COMPLETED
	if intent == rollback {
		want = pb.State_STATE_ROLLED_BACK
	}
	s.awaitState(want, "")
}

// TestDisaggregatedReleased: batches are units, both ways: aborted, the update's groups go and the stable ones were never touched; promoted,
// they become the set without a second start, decode last. The hold is that of the new revision. The second release has a Service, which selects
// decode: its units are groups of decode, also once another client deletes the record.
//
// Proves (smoke): A DisaggregatedSet is released by units: aborted, promoted.
func TestDisaggregatedReleased(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 4, 2)
	s.adopt()
	stable := s.Leaders("v1")
	s.pace("50%", "0") // of the one group of a first batch this is 0, which LWS refuses
	s.setImage("v2")

	s.begin("aborted", pb.Style_STYLE_CANARY, "25%", "75%", "100%")
	for batch, groups := range [][2]int32{{1, 1}, {3, 2}} {
		c := s.upgrade("aborted", int32(batch))
		s.Await("v2", groups[0], groups[1])
		s.Await("v1", 4, 2)
		if roles := c.GetRoles(); c.GetUpdatedReady() != groups[0] || roles[1].GetUpdatedReady() != groups[1] || roles[1].GetPlanned() != groups[1] {
			t.Errorf("batch %d: %d units ready, roles %v", batch, c.GetUpdatedReady(), roles)
		}
	}
	s.abortBy("aborted", "patch disaggregatedsets", "patch replicabounds", "patch leaderworkersets", "patch leaderworkersets", "patch replicabounds")
	s.awaitHeld("v2")
	s.mustStay("v1", stable)
	if c := s.awaitState(pb.State_STATE_ROLLED_BACK, ""); !strings.Contains(c.GetMessage(), "run `lockstep undo disaggregatedset/llm -n "+s.namespace+" --to-revision "+c.GetStableRevision()+"`") {
		t.Errorf("the abort does not say how the template is withdrawn: %s", c.GetMessage())
	}

	s.expose()
	decode := s.service()
	policy := &pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"50%", "100%"}, Traffic: &pb.TrafficPolicy{StableService: s.name + "-http", Ingresses: []string{s.name}},
	}
	forecast, err := s.driver.Plan(t.Context(), &pb.PlanRequest{Workload: s.ref(), Policy: policy})
	require.True(t, err == nil && len(forecast.GetBlockers()) == 0, "plan: %v, %v", forecast.GetBlockers(), err)
	s.beginWith("promoted", policy)
	c := s.upgrade("promoted", 0)
	s.Await("v2", 2, 1)
	for what, roles := range map[string][]*pb.Role{"plan": forecast.GetSteps()[0].GetRoles(), "context": c.GetRoles()} {
		assert.True(t, c.GetReplicas() == 2 && c.GetUpdatedReady() == 1 && roles[0].GetName() == "decode" && roles[0].GetUpdatedReady() == 1 && roles[1].GetUpdatedReady() == 2,
			"%s: %d of %d units are ready, roles %v", what, c.GetUpdatedReady(), c.GetReplicas(), roles)
	}
	if now := s.service(); now[disaggregated.RoleLabelKey] != "decode" || now[disaggregated.RevisionLabelKey] != c.GetStableRevision() {
		t.Errorf("the Service selects %v", now)
	}
	s.driver.Kill()
	s.driver.Restart()
	s.upgrade("promoted", 1)
	updated := s.Leaders("v2")
	s.finalize("promoted", promote)
	if now := s.service(); !maps.Equal(now, decode) {
		t.Errorf("the Service selects %v", now)
	}
	s.Await("v1", -1, -1)
	s.Await("v2", 4, 2)
	assert.Len(t, updated, 6, "updated groups")
	s.mustStay("v2", updated)
	s.setImage("v3")
	s.awaitHeld("v3")
	s.Await("v2", 4, 2)

	s.driver.Kill()
	s.edit(func(set *disaggregated.DisaggregatedSet) { delete(set.Annotations, recordAnnotation) })
	s.driver.Restart()
	if c := s.awaitState(pb.State_STATE_UNMANAGED, "HoldWithoutRecord"); c.GetReplicas() != 2 || c.GetRoles()[0].GetName() != "decode" {
		t.Errorf("without the record there are %d units, and the entry role is %s", c.GetReplicas(), c.GetRoles()[0].GetName())
	}
}

// abortBy rolls a release back, prints when each write comes that this takes, and fails unless the driver writes exactly these objects. The history
// is written in its own time.
func (s *roleSet) abortBy(id string, want ...string) {
	s.t.Helper()
	from, asked := audit.Mark(s.t, s.kube, s.namespace), time.Now()
	s.finalize(id, rollback)
	s.t.Logf("the abort took %.1f s", time.Since(asked).Seconds())
	var writes []string
	for _, r := range audit.Between(s.t, s.cluster.AuditLog(), from, audit.Mark(s.t, s.kube, s.namespace), s.namespace) {
		of := r.ObjectRef.Resource
		if r.IsWrite() && r.User.Username == driver.User && r.ResponseStatus.Code < http.StatusBadRequest && of != "events" && of != "controllerrevisions" {
			writes = append(writes, r.String())
			s.t.Logf("%s after %.1f s", writes[len(writes)-1], r.ReceivedAt.Sub(asked).Seconds())
		}
	}
	assert.True(s.t, slices.Equal(writes, want), "the abort took the writes %q, want %q", writes, want)
}

// pace sets how many groups of each role may be unavailable, and in addition, while they are replaced.
func (s *roleSet) pace(maxUnavailable, maxSurge string) {
	s.t.Helper()
	s.edit(func(set *disaggregated.DisaggregatedSet) {
		for i := range set.Spec.Roles {
			set.Spec.Roles[i].Spec.RolloutStrategy = model(s.name, 1, 2, rolling(maxUnavailable, maxSurge, -1)).Spec.RolloutStrategy
		}
	})
}

// census has all the leaders that there ever were.
type census struct {
	mu   sync.Mutex
	seen map[string]map[types.UID]bool // by image
}

// count follows the leaders of the set until the test ends.
func (s *roleSet) count() *census {
	s.t.Helper()
	c := &census{seen: map[string]map[types.UID]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	leaders := metav1.ListOptions{LabelSelector: lws.WorkerIndexLabelKey + "=0," + disaggregated.SetNameLabelKey + "=" + s.name}
	list, err := s.kube.CoreV1().Pods(s.namespace).List(ctx, leaders)
	require.NoError(s.t, err)
	for i := range list.Items {
		c.add(&list.Items[i])
	}
	leaders.ResourceVersion = list.ResourceVersion
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.LabelSelector = leaders.LabelSelector
		return s.kube.CoreV1().Pods(s.namespace).Watch(ctx, o)
	}})
	require.NoError(s.t, err)
	var following sync.WaitGroup
	following.Go(func() {
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				c.add(pod)
			}
		}
	})
	s.t.Cleanup(func() {
		w.Stop()
		cancel()
		following.Wait()
	})
	return c
}

func (c *census) add(p *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	image := p.Spec.Containers[0].Image
	tag := image[strings.LastIndex(image, ":")+1:]
	if c.seen[tag] == nil {
		c.seen[tag] = map[types.UID]bool{}
	}
	c.seen[tag][p.UID] = true
}

// TestDisaggregatedShifted: new units take the place of old ones, and no role ever has more groups than in the spec (ruleRoom), although pods
// take a while to terminate. Aborted, the old units return the same way. Promoted, the last ones are replaced, and no group starts twice.
//
// Proves (test): A DisaggregatedSet is released with its own capacity, unit by unit, both ways: no role ever has more groups than in its
// spec.
func TestDisaggregatedShifted(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 4, 2, cluster.AnnotationTermination+": 300ms")
	s.pace("1", "0")
	s.adopt()
	s.setImage("v2")
	s.awaitHeld("v2")
	groups := s.count()

	s.begin("aborted", pb.Style_STYLE_PARTITION, "25%", "50%", "100%")
	for batch, updated := range [][2]int32{{1, 1}, {2, 1}} {
		c := s.upgrade("aborted", int32(batch))
		assert.True(t, c.GetUpdatedReady() == updated[0] && c.GetRoles()[1].GetUpdatedReady() == updated[1],
			"batch %d: %d units ready, roles %v", batch, c.GetUpdatedReady(), c.GetRoles())
		s.Await("v2", updated[0], updated[1])
		s.Await("v1", 4-updated[0], 2-updated[1])
	}
	s.finalize("aborted", rollback)
	s.awaitHeld("v2")
	s.Await("v1", 4, 2)

	s.begin("promoted", pb.Style_STYLE_PARTITION, "25%", "100%")
	s.upgrade("promoted", 0)
	s.driver.Kill()
	s.driver.Restart()
	s.upgrade("promoted", 1)
	s.Await("v1", 2, 1) // a group of decode is the way back
	s.finalize("promoted", promote)
	s.Await("v1", -1, -1)
	s.Await("v2", 4, 2)

	groups.mu.Lock()
	defer groups.mu.Unlock()
	assert.Len(t, groups.seen["v2"], 3+6, "groups of the update were started, want 3 and 6")
}

// scaler returns the scaler of role prefill, as LWS created it.
func (s *roleSet) scaler(ctx context.Context) (*unstructured.Unstructured, error) {
	return s.dynamic.Resource(scalersResource).Namespace(s.namespace).Get(ctx, s.name+"-prefill", metav1.GetOptions{})
}

// scaleRole sets the groups of role prefill as an autoscaler does.
func (s *roleSet) scaleRole(groups int) {
	s.t.Helper()
	_, err := s.dynamic.Resource(scalersResource).Namespace(s.namespace).Patch(s.t.Context(), s.name+"-prefill", types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, groups), metav1.PatchOptions{FieldManager: "autoscaler"}, "scale")
	require.NoError(s.t, err)
}

// autoscale gives role prefill its groups in a scaler, and an HPA that scales it. Without metrics the HPA changes nothing.
func (s *roleSet) autoscale() {
	s.t.Helper()
	s.scaleExternally(0)
	s.eventually("the scaler", func(ctx context.Context) error {
		_, err := s.scaler(ctx)
		return err
	})
	s.autoscaleBy(autoscalingv2.CrossVersionObjectReference{
		APIVersion: roleSetsResource.GroupVersion().String(), Kind: "DisaggregatedSetRoleScaler", Name: s.name + "-prefill",
	}, 1, 8, selectPolicies(maxChange, minChange))
}

// forgeScaler takes the name of the scaler of role decode before LWS creates it. Its number has no effect, and no release begins before LWS
// has created its own.
func (s *roleSet) forgeScaler() {
	s.t.Helper()
	scalers, name := s.dynamic.Resource(scalersResource).Namespace(s.namespace), s.name+"-decode"
	forged := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": scalersResource.GroupVersion().String(), "kind": "DisaggregatedSetRoleScaler",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"replicas": int64(7)},
	}}
	suite.CreateObject(s.t, scalers, forged)
	s.scaleExternally(1)
	s.eventually("the scaler is refused", func(ctx context.Context) error {
		_, err := s.driver.Adopt(ctx, &pb.AdoptRequest{Workload: s.ref()}) // as a release is, but it changes nothing
		if err == nil || !strings.Contains(err.Error(), name+" is not one of DisaggregatedSet") {
			return fmt.Errorf("it got %w", err)
		}
		return nil
	})
	require.NoError(s.t, errors.Join(s.Check(s.t.Context(), "v1", 5, 2), scalers.Delete(s.t.Context(), name, metav1.DeleteOptions{})))
	s.wake()
}

// scaleExternally gives a role its groups in a scaler.
func (s *roleSet) scaleExternally(role int) {
	s.t.Helper()
	patch := fmt.Appendf(nil, `[{"op":"add","path":"/spec/roles/%d/scaling","value":{"mode":"External"}}]`, role)
	_, err := s.sets().Patch(s.t.Context(), s.name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "kubectl"})
	require.NoError(s.t, err)
}

// awaitHold waits until the HPA is kept from what hold names: "down", "all", or nothing, with its own settings and target.
func (s *roleSet) awaitHold(hold string, before *autoscalingv2.HorizontalPodAutoscaler) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("the HPA has the hold %q", hold), func(context.Context) error {
		h := s.hpa()
		up, down := ptr.Deref(h.Spec.Behavior.ScaleUp.SelectPolicy, ""), ptr.Deref(h.Spec.Behavior.ScaleDown.SelectPolicy, "")
		note := h.Annotations[heldAnnotation]
		if (down == disabled) != (hold != "") || (up == disabled) != (hold == "all") || (note != "") != (hold != "") ||
			hold == "" && asJSON(h.Spec) != asJSON(before.Spec) {
			return fmt.Errorf("it has %s and the note %q", asJSON(h.Spec), note)
		}
		return nil
	})
}

// needsScalers skips a test of what LWS has from v0.10.0 on, as DisaggregatedSetRoleScalers and slices.
func needsScalers(t *testing.T) {
	t.Helper()
	if !newEnvIn(t, cluster.Shared(t)).hasScalers() {
		t.Skip("this LWS has neither DisaggregatedSetRoleScalers nor slices: v0.10.0 is the first that has them")
	}
}

func (e *env) hasScalers() bool {
	e.t.Helper()
	served, err := e.kube.Discovery().ServerResourcesForGroupVersion(roleSetsResource.GroupVersion().String())
	require.NoError(e.t, err)
	return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == scalersResource.Resource })
}

// TestDisaggregatedRoleScaler: the groups of a role follow its scaler, at rest, in batches, in a whole second set and in a shift. The HPA that scales
// it is held during a release, and restored after an abort and a promotion. Only a scaler that belongs to the set counts.
//
// Proves (smoke): The groups of a role follow its scaler, also one that comes and goes in mid-release, and an HPA that scales it is held
// (LWS v0.10.0).
func TestDisaggregatedRoleScaler(t *testing.T) {
	t.Parallel()
	needsScalers(t)
	s := newRoleSet(t, 4, 2)
	s.observer.waive(ruleRoles, ruleRoom) // both read the groups in the spec, and a scaler has those of prefill
	s.autoscale()
	before := s.hpa()
	s.adopt()
	s.scaleRole(5)
	s.Await("v1", 5, 2)
	s.scaleRole(4)
	s.Await("v1", 4, 2)
	s.setImage("v2")
	s.awaitHeld("v2")
	s.scaleRole(3)
	s.Await("v1", 3, 2)
	s.scaleRole(4)
	s.Await("v1", 4, 2)
	s.awaitHold("", before)

	s.begin("aborted", pb.Style_STYLE_CANARY, "25%", "100%")
	s.upgrade("aborted", 0)
	s.Await("v2", 1, 1)
	s.awaitHold("down", before)
	s.scaleRole(5)
	s.Await("v1", 5, 2)
	s.Await("v2", 2, 1)
	c := s.awaitState(pb.State_STATE_READY, "BatchReady")
	if roles := c.GetRoles(); c.GetUpdatedReady() != 2 || roles[0].GetReplicas() != 5 || roles[0].GetPlanned() != 2 {
		t.Errorf("%d units are ready, roles %v", c.GetUpdatedReady(), roles)
	}
	s.finalize("aborted", rollback)
	s.awaitHeld("v2")
	s.Await("v1", 5, 2)
	s.awaitHold("", before)

	s.forgeScaler()
	s.begin("promoted", pb.Style_STYLE_BLUE_GREEN, "100%")
	s.upgrade("promoted", 0)
	s.Await("v2", 5, 2)
	s.awaitHold("all", before)
	s.driver.Kill()
	s.scaleRole(4)
	s.driver.Restart()
	s.Await("v1", 4, 2)
	s.Await("v2", 4, 2)
	s.finalize("promoted", promote)
	s.Await("v1", -1, -1)
	s.Await("v2", 4, 2)
	s.awaitHold("", before)

	s.setImage("v3")
	s.awaitHeld("v3")
	s.switchesScaling(before)
	s.begin("shifted", pb.Style_STYLE_PARTITION, "50%", "100%")
	s.upgrade("shifted", 0)
	s.Await("v3", 2, 1)
	s.Await("v2", 2, 1)
	s.awaitHold("down", before)
	s.scaleRole(6)
	s.Await("v3", 3, 1)
	s.Await("v2", 3, 1)
	s.finalize("shifted", promote)
	s.Await("v2", -1, -1)
	s.Await("v3", 6, 2)
	s.awaitHold("", before)
}

// switchesScaling gives prefill its groups in the spec and then in a scaler again, both in mid-release. LWS counts the groups of both revisions
// in a scaler that it creates: no group is started for it, and the release waits until the scaler has the groups of one.
func (s *roleSet) switchesScaling(before *autoscalingv2.HorizontalPodAutoscaler) {
	s.t.Helper()
	ctx := s.t.Context()
	s.begin("switched", pb.Style_STYLE_CANARY, "50%", "100%")
	s.upgrade("switched", 0)
	s.awaitHold("down", before)
	patch := []byte(`[{"op":"remove","path":"/spec/roles/0/scaling"},{"op":"replace","path":"/spec/roles/0/spec/replicas","value":5}]`)
	if _, err := s.sets().Patch(ctx, s.name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: "kubectl"}); err != nil {
		s.t.Fatal(err)
	}
	s.Await("v2", 5, 2)
	s.Await("v3", 3, 2)
	s.awaitState(pb.State_STATE_READY, "BatchReady")
	s.awaitHold("", before) // LWS has deleted what it scaled
	stable, updated := s.Leaders("v2"), s.Leaders("v3")

	s.scaleExternally(0)
	s.eventually("it waits for the scaler", func(ctx context.Context) error {
		c, err := s.tryContext(ctx)
		if text := c.GetMessage(); err == nil && (c.GetReason() != "RoleUnsized" || !strings.Contains(text, s.name+"-prefill has 8 groups") || !strings.Contains(text, "the role keeps 5")) {
			return fmt.Errorf("it waits with %q", text) // LWS has yet to create it
		}
		return err
	})
	s.awaitState(pb.State_STATE_VERIFYING, "RoleUnsized")
	s.awaitHold("down", before)
	_, err := s.driver.Finalize(ctx, &pb.FinalizeRequest{Workload: s.ref(), ReleaseId: "switched", Intent: promote})
	mustFail(s.t, err, pb.ErrorReason_ERROR_REASON_NOT_SYNCED, s.name+"-prefill has 8 groups")
	s.scaleRole(5)
	s.awaitState(pb.State_STATE_READY, "BatchReady")
	assert.NoError(s.t, errors.Join(s.Check(ctx, "v2", 5, 2), s.Check(ctx, "v3", 3, 2)))
	s.mustStay("v2", stable)
	s.mustStay("v3", updated)
	s.scaleRole(4)
	s.finalize("switched", rollback)
	s.awaitHeld("v3")
	s.Await("v2", 4, 2)
	s.awaitHold("", before)
}

// TestDisaggregatedBlueGreen: a whole second set is started beside the first. A third template in mid-release starts over.
//
// Proves (test): A DisaggregatedSet is released by units: aborted, promoted, the driver killed; blue-green and a third template; refused in
// words.
func TestDisaggregatedBlueGreen(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 2, 1)
	s.adopt()
	s.setImage("v2")
	s.begin("release", pb.Style_STYLE_BLUE_GREEN, "100%")
	s.upgrade("release", 0)
	s.setImage("v3")
	s.Await("v2", -1, -1)
	s.awaitState(pb.State_STATE_HOLDING, "WaitingForFirstBatch")
	s.Await("v1", 2, 1)
	s.upgrade("release", 0)
	s.Await("v3", 2, 1)
	s.Await("v1", 2, 1)
	s.finalize("release", promote)
	s.Await("v1", -1, -1)
	s.Await("v3", 2, 1)
}

// TestDisaggregatedScaledToZero: a set that is scaled to 0 in mid-release loses its old children, and returns as the template in the spec alone. An
// abort restores the old one, and with it the old children.
//
// Proves (test): A DisaggregatedSet is released by units: aborted, promoted, the driver killed; blue-green and a third template; refused in
// words.
func TestDisaggregatedScaledToZero(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 2, 1)
	s.observer.Waive() // from 0 groups LWS starts the template in the spec
	s.adopt()
	s.setImage("v2")
	s.begin("release", pb.Style_STYLE_BLUE_GREEN, "100%")
	s.upgrade("release", 0)
	s.scale(0, 0)
	s.awaitState(pb.State_STATE_FAILED, "ScaledToZero")
	s.Await("v1", -1, -1)
	s.scale(2, 1)
	s.awaitState(pb.State_STATE_FAILED, "UnreleasedRevision")
	s.Await("v2", 2, 1)
	s.finalize("release", rollback)
	s.Await("v1", 2, 1)
	s.Await("v2", -1, -1)
}

// TestDisaggregatedEmptied: LWS deletes the children of the template before if every role is scaled to 0 while another one waits. Scaled up
// again, no group starts by itself, and the status says why: an undo restores the groups, and a set that is disowned starts the new template.
//
// Proves (test): A DisaggregatedSet is held for every client, and scaled, edited and disowned under the hold.
func TestDisaggregatedEmptied(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 2, 1)
	s.adopt()
	stable := s.awaitHistory("1 v1 - stable current")[0].GetName()
	for _, bring := range []func(){
		func() {
			s.undo("")
			s.Await("v1", 2, 1)
			s.Await("v2", -1, -1)
		},
		func() {
			s.disown(s.ref())
			s.wake()
			s.Await("v2", 2, 1)
			s.eventually("adoption", func(ctx context.Context) error {
				_, err := s.driver.Adopt(ctx, &pb.AdoptRequest{Workload: s.ref()})
				return err
			})
		},
	} {
		s.setImage("v2")
		s.awaitHeld("v2")
		s.scale(0, 0)
		s.Await("v1", -1, -1)
		s.awaitState(pb.State_STATE_HOLDING, "NewRevisionWaits")
		s.scale(2, 1)
		c := s.awaitState(pb.State_STATE_HOLDING, "ChildMissing")
		named := "disaggregatedset/llm -n " + s.namespace
		for _, command := range []string{"lockstep undo " + named + " --to-revision " + stable, "lockstep disown " + named} {
			assert.Contains(t, c.GetMessage(), command)
		}
		_, err := s.driver.Initialize(t.Context(), &pb.InitializeRequest{
			Workload: s.ref(), ReleaseId: "r1", Owner: "test", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}},
		})
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "no child of role prefill", "lockstep undo")
		s.awaitHeld("v2")
		bring()
		s.awaitState(pb.State_STATE_HOLDING, "Held")
	}
}

// undo restores a template. Its roles and whatever is no part of a revision stay.
func (s *roleSet) undo(revision string) string {
	s.t.Helper()
	r, err := s.driver.Undo(s.t.Context(), &pb.UndoRequest{Workload: s.ref(), Revision: revision})
	require.True(s.t, err == nil && r.GetAction() == pb.Action_ACTION_CONFIGURED, "Undo to %q: %v, %v", revision, r, err)
	return r.GetRevision()
}

// TestDisaggregatedUndone: the history keeps the templates of all roles, for as long as the set exists. An undo restores one under the hold
// without what is no part of it, also of a set that is not adopted. Roles can't be added, removed or reordered by it.
//
// Proves (test): A DisaggregatedSet is planned, checked, released and undone; its history survives, and is deleted with it.
func TestDisaggregatedUndone(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 2, 1)
	s.adopt()
	s.setImage("v2")
	s.awaitHeld("v2")
	kept := metav1.ListOptions{LabelSelector: snapshotSelector}
	require.NoError(t, s.kube.AppsV1().ControllerRevisions(s.namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, kept))
	s.awaitHistory("0 v2 - current", "1 v1 - stable") // from the children
	s.mustPrint([]string{"batch 2 of 2 (100%) 2 2 4 +3 +6", "batch 1 of 2 (50%) prefill 1/2, decode 1/1", "promote prefill 2/2, decode 1/1"},
		"plan", "disaggregatedset/"+s.name, "--batches", "50%,100%")
	s.mustPrint([]string{"role prefill: no container of the leader has a readiness probe", "role decode: no container of the leader has a readiness probe"},
		"preflight", "disaggregatedset/"+s.name, "--batches", "100%", "--fail-on", "never")
	s.begin("first", pb.Style_STYLE_CANARY, "100%")
	s.upgrade("first", 0)
	_, err := s.driver.Undo(t.Context(), &pb.UndoRequest{Workload: s.ref()})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "first", "roll it back")
	s.finalize("first", promote)
	history := s.awaitHistory("2 v2 first COMPLETED stable current", "1 v1 -")
	leaders := s.Leaders("v2")
	s.mustPrint(nil, "status", "disaggregatedset/"+s.name, "--wait=1m", "--kubeconfig", s.cluster.Kubeconfig()) // a user may get the set
	s.mustPrint([]string{"prefill/server=example.com/model:v2", "promoted"}, "history", "disaggregatedset/"+s.name)

	s.scale(3, 2)
	s.Await("v2", 3, 2)
	name := s.undo("")
	assert.Equal(t, history[1].GetName(), name, "revision %s is restored, want %s", name, history[1].GetName())
	s.awaitHeld("v1")
	s.Await("v2", 3, 2)
	s.awaitHistory("2 v2 first COMPLETED stable", "1 v1 - current")
	if c := s.awaitState(pb.State_STATE_COMPLETED, ""); c.GetTemplateRevision() != history[1].GetName() {
		t.Errorf("the template waits as revision %s: %s", c.GetTemplateRevision(), c.GetMessage())
	}
	s.mustKeep("v2", leaders)
	s.begin("again", pb.Style_STYLE_BLUE_GREEN, "100%")
	s.upgrade("again", 0)
	s.finalize("again", promote)
	s.Await("v2", -1, -1)
	s.Await("v1", 3, 2)
	again := s.awaitHistory("3 v1 again COMPLETED stable current", "2 v2 first COMPLETED")
	assert.Equal(t, "lockstep-undo", again[0].GetChangedBy(), "the newest revision is %v", again[0])

	s.disown(s.ref())
	s.undo(history[0].GetName())
	s.awaitHeld("v2")
	s.Await("v1", 3, 2)
	s.edit(func(set *disaggregated.DisaggregatedSet) { set.Spec.Roles[1].Name = "answer" })
	s.eventually("the roles are refused", func(ctx context.Context) error {
		_, err := s.driver.Undo(ctx, &pb.UndoRequest{Workload: s.ref(), Revision: history[1].GetName()})
		if err == nil || !strings.Contains(err.Error(), "has the roles prefill, decode, and its spec has prefill, answer") {
			return fmt.Errorf("undo: %w", err)
		}
		return nil
	})
	suite.DeleteObject(t, s.sets(), s.name)
	s.eventually("the history is deleted", func(ctx context.Context) error {
		list, err := s.kube.AppsV1().ControllerRevisions(s.namespace).List(ctx, kept)
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("it has %d revisions", len(list.Items))
		}
		return err
	})
}

// TestDisaggregatedRefused: what a release or the hold can't do is refused in words, and changes nothing.
//
// Proves (test): A DisaggregatedSet is released by units: aborted, promoted, the driver killed; blue-green and a third template; refused in
// words.
func TestDisaggregatedRefused(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 2, 1)
	s.adopt()
	s.setImage("v2")
	s.awaitHeld("v2")
	begin := func(change func(*pb.ReleasePolicy)) error {
		p := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}
		change(p)
		_, err := s.driver.Initialize(t.Context(), &pb.InitializeRequest{Workload: s.ref(), ReleaseId: "r", Owner: "test", Policy: p})
		return err
	}
	s.pace("1", "0") // decode has one group, which would have to go before the promotion
	child, err := s.Children(t.Context(), "v1")
	require.NoError(t, err)
	_, errChild := s.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: s.namespace, Name: child["decode"].Name}})
	_, errName := s.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: s.namespace, Name: "disaggregatedset/llm"}})
	for _, refused := range []struct {
		err  error
		want string
	}{
		{begin(func(p *pb.ReleasePolicy) { p.Style = pb.Style_STYLE_PARTITION }), "Raise maxSurge of role decode to 1"},
		{begin(func(p *pb.ReleasePolicy) { p.RolloutId = "r" }), "rollout_id"},
		{errChild, `is controlled by DisaggregatedSet "llm"`},
		{errName, "its kind belongs in workload.kind"},
	} {
		assert.ErrorContains(t, refused.err, refused.want, "want %q, got %v", refused.want, refused.err)
	}
	assert.NoError(t, errors.Join(s.Check(t.Context(), "v2", 0, 0), s.Check(t.Context(), "v1", 2, 1)))
}

// TestDisaggregatedForeign: what another client deletes or forges is restored or refused. A set that is deleted in mid-release takes everything
// of it along; one that is orphaned leaves no bounds behind that keep its children from being scaled.
//
// Proves (test): Bounds that are deleted are restored, forged ones refused, and hold no LeaderWorkerSet that only has the name of a child;
// a DisaggregatedSet that is deleted or orphaned leaves none behind.
func TestDisaggregatedForeign(t *testing.T) {
	t.Parallel()
	s := newRoleSet(t, 2, 1)
	bounds := s.dynamic.Resource(boundsResource).Namespace(s.namespace)
	s.adopt()
	s.leavesNamesakes()
	s.refusesForeignBounds()
	s.setImage("v2")
	s.begin("r1", pb.Style_STYLE_CANARY, "50%", "100%")
	s.upgrade("r1", 0)
	s.Await("v2", 1, 1)
	updated := s.Leaders("v2")

	suite.DeleteObject(t, bounds, s.name)
	s.eventually("the bounds are restored with the batch", func(ctx context.Context) error {
		b, err := bounds.Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if units, _, _ := unstructured.NestedInt64(b.Object, "spec", "units"); units != 1 {
			return fmt.Errorf("%d units", units)
		}
		return nil
	})
	s.awaitState(pb.State_STATE_READY, "BatchReady")
	s.mustStay("v2", updated)

	s.edit(func(set *disaggregated.DisaggregatedSet) {
		set.Labels = map[string]string{"example.com/edited": "true"}
	})
	foreground := metav1.DeletePropagationForeground
	require.NoError(t, s.sets().Delete(t.Context(), s.name, metav1.DeleteOptions{PropagationPolicy: &foreground}))
	s.Await("v1", -1, -1)
	s.Await("v2", -1, -1)
	s.awaitNoBounds()
	s.create(2, 1)
	s.Await("v1", 2, 1)
	s.awaitState(pb.State_STATE_UNMANAGED, "")
	s.adopt()
	s.awaitState(pb.State_STATE_HOLDING, "Held")

	orphan := metav1.DeletePropagationOrphan
	require.NoError(t, s.sets().Delete(t.Context(), s.name, metav1.DeleteOptions{PropagationPolicy: &orphan}))
	s.awaitNoBounds()
	s.Await("v1", 2, 1)
}

// leavesNamesakes scales LeaderWorkerSets with names like children of the set through their scale, which has no labels: a child of the set
// llm-1, which is under its own hold, and one that is of no set. Neither set bounds what is not its own.
func (s *roleSet) leavesNamesakes() {
	s.t.Helper()
	ctx, sets := s.t.Context(), s.lws.LeaderworkersetV1().LeaderWorkerSets(s.namespace)
	other := &roleSet{s.withDriver(s.driver), &suite.Roles{T: s.t, Cluster: s.cluster, Namespace: s.namespace, Name: s.name + "-1"}}
	other.name = other.Name
	other.create(2, 1)
	other.Await("v1", 2, 1)
	plain := model(s.name+"-1-20260101-prefill", 2, 1, rolling("1", "0", 0)) // as LWS v0.9.0 names a child of llm-1, and v0.10.0 one of llm
	_, err := sets.Create(ctx, plain, metav1.CreateOptions{})
	require.NoError(s.t, err)
	other.adopt()
	own, errOwn := s.Children(ctx, "v1")
	others, errOthers := other.Children(ctx, "v1")
	require.True(s.t, errOwn == nil && errOthers == nil, "%v %v", errOwn, errOthers)
	scale := func(child string, groups int) error { return s.dryScale(ctx, child, groups, "scale") }
	s.eventually("the namesakes are scaled", func(context.Context) error {
		return errors.Join(scale(plain.Name, 0), scale(plain.Name, 3), scale(others["prefill"].Name, 3), scale(own["prefill"].Name, 3))
	})
	for set, child := range map[string]string{s.name: own["prefill"].Name, other.name: others["prefill"].Name} {
		assert.ErrorContains(s.t, scale(child, 1), "DisaggregatedSet "+set+" is under Lockstep's hold: "+child+" has at least 2",
			"%s is scaled below its minimum", child)
	}
	require.NoError(s.t, errors.Join(sets.Delete(ctx, plain.Name, metav1.DeleteOptions{}), s.sets().Delete(ctx, other.name, metav1.DeleteOptions{})))
	other.awaitNoBounds()
	s.eventually("the name is bound again", func(ctx context.Context) error {
		b, err := s.dynamic.Resource(boundsResource).Namespace(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
		if left, _, _ := unstructured.NestedStringSlice(b.Object, "spec", "others"); err == nil && len(left) > 0 {
			err = fmt.Errorf("%q are left out", left)
		}
		return err
	})
}

// refusesForeignBounds has an editor of bounds, who may not drive releases, write some for the set. An operator may.
func (s *roleSet) refusesForeignBounds() {
	s.t.Helper()
	editor, operator := tenant.Pair(s.t, s.cluster, s.namespace, rbacv1.PolicyRule{APIGroups: []string{"lockstep.dev"}, Resources: []string{"replicabounds"}, Verbs: []string{"*"}})
	forged := "metadata: {name: forged}\napiVersion: lockstep.dev/v1alpha1\nkind: ReplicaBounds\nspec: {set: llm, roles: [{name: prefill}], stable: a, min: {}}"
	lower := `{"spec":{"min":{"0-prefill":0}}}`
	for what, err := range map[string]error{
		"created": editor.Create(boundsResource, forged), "lowered": editor.Patch(boundsResource, s.name, lower),
		"deleted": editor.Resource(boundsResource).Namespace(s.namespace).Delete(s.t.Context(), s.name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}),
	} {
		assert.True(s.t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "may not write ReplicaBounds: requires the verb drive"),
			"bounds are %s by an editor: %v", what, err)
	}
	assert.NoError(s.t, operator.Patch(boundsResource, s.name, lower), "an operator")
}

// awaitNoBounds waits until the set has no bounds.
func (s *roleSet) awaitNoBounds() {
	s.t.Helper()
	s.eventually("the bounds are deleted", func(ctx context.Context) error {
		_, err := s.dynamic.Resource(boundsResource).Namespace(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
		return suite.Gone(err)
	})
}
