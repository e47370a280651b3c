// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	sigsyaml "sigs.k8s.io/yaml"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// The admission policy's annotations. They are repeated here on purpose: they are part of the contract.
const (
	wantedPartition      = "lockstep.dev/wanted-partition"
	wantedMaxUnavailable = "lockstep.dev/wanted-max-unavailable"
	wantedMaxSurge       = "lockstep.dev/wanted-max-surge"
)

// newAdmissionEnv is newEnv with config/admission, in this namespace only.
func newAdmissionEnv(t *testing.T) *env {
	t.Helper()
	e := newEnvIn(t, cluster.Shared(t))
	e.admit()
	e.driver = driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	return e
}

// admit applies the policy and its binding, which it restricts to the namespace, and returns once they are in force.
func (e *env) admit() {
	e.t.Helper()
	manifest, err := deploy.Admission()
	require.NoError(e.t, err)
	var binding string
	for part := range bytes.SplitSeq(manifest, []byte("---\n")) {
		var b admissionv1.MutatingAdmissionPolicyBinding
		require.NoError(e.t, yaml.Unmarshal(part, &b))
		if b.Kind == "MutatingAdmissionPolicyBinding" {
			b.Name += "-" + e.namespace
			b.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: e.namespace},
			}}
			binding = b.Name
			part, err = sigsyaml.Marshal(b)
			require.NoError(e.t, err)
		}
		if len(bytes.TrimSpace(part)) == 0 {
			continue
		}
		require.NoError(e.t, e.cluster.Apply(e.t.Context(), "", part))
	}
	e.t.Cleanup(func() {
		err := e.kube.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Delete(context.Background(), binding, metav1.DeleteOptions{})
		assert.NoError(e.t, err, "delete the binding")
	})

	probe := model("probe", 0, 1, rolling("1", "0", holdPartition))
	probe.Annotations = map[string]string{recordAnnotation: "{}"}
	sets := e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace)
	e.eventually("the probe is created", func(ctx context.Context) error {
		_, err := sets.Create(ctx, probe, metav1.CreateOptions{})
		return err
	})
	e.eventually("the policy is in force", func(ctx context.Context) error {
		got, err := sets.Patch(ctx, probe.Name, types.MergePatchType,
			[]byte(`{"spec":{"rolloutStrategy":{"rollingUpdateConfiguration":{"partition":0}}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && !isHold(got.Spec.RolloutStrategy.RollingUpdateConfiguration) {
			err = fmt.Errorf("the request removed the hold: %s", asJSON(got.Spec.RolloutStrategy))
		}
		return err
	})
	suite.Delete(e.t, sets, probe.Name)
}

// delivery is a way to apply a user's manifest.
type delivery func(w *workload, manifest *lws.LeaderWorkerSet)

func (w *workload) dynamicSets() dynamic.ResourceInterface {
	return w.dynamic.Resource(lws.GroupVersion.WithResource("leaderworkersets")).Namespace(w.namespace)
}

// plain returns a manifest as it is kept in Git.
func plain(manifest *lws.LeaderWorkerSet) map[string]any {
	var object map[string]any
	if err := json.Unmarshal([]byte(asJSON(manifest)), &object); err != nil {
		panic(err)
	}
	delete(object, "status")
	object["apiVersion"], object["kind"] = lws.GroupVersion.String(), "LeaderWorkerSet"
	unstructured.RemoveNestedField(object, "metadata", "creationTimestamp")
	return object
}

// serverSide is kubectl apply --server-side --force-conflicts, Argo CD's and Flux's.
func serverSide(w *workload, manifest *lws.LeaderWorkerSet) {
	w.t.Helper()
	_, err := w.dynamicSets().Apply(w.t.Context(), w.name, &unstructured.Unstructured{Object: plain(manifest)},
		metav1.ApplyOptions{FieldManager: "gitops", Force: true})
	require.NoError(w.t, err)
}

// clientSide is kubectl apply: a three-way merge of the manifest, the last applied one and the live object.
func clientSide(w *workload, manifest *lws.LeaderWorkerSet) {
	w.t.Helper()
	live := suite.GetObject(w.t.Context(), w.t, w.dynamicSets(), w.name)
	next := plain(manifest)
	last := asJSON(next)
	require.NoError(w.t, unstructured.SetNestedField(next, last, "metadata", "annotations", corev1.LastAppliedConfigAnnotation))
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(
		[]byte(live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]), []byte(asJSON(next)), []byte(asJSON(live)))
	require.NoError(w.t, err)
	_, err = w.dynamicSets().Patch(w.t.Context(), w.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-client-side-apply"})
	require.NoError(w.t, err)
}

// replaced is kubectl replace, and Argo CD's Replace=true.
func replaced(w *workload, manifest *lws.LeaderWorkerSet) {
	w.t.Helper()
	err := retry.RetryOnConflict(persistent, func() error {
		object := &unstructured.Unstructured{Object: plain(manifest)}
		object.SetResourceVersion(w.get().ResourceVersion)
		_, err := w.dynamicSets().Update(w.t.Context(), object, metav1.UpdateOptions{FieldManager: "kubectl-replace"})
		return err
	})
	require.NoError(w.t, err)
}

// edited is kubectl edit of the live object.
func edited(w *workload, manifest *lws.LeaderWorkerSet) {
	w.t.Helper()
	w.edit(func(s *lws.LeaderWorkerSet) {
		s.Spec.LeaderWorkerTemplate = *manifest.Spec.LeaderWorkerTemplate.DeepCopy()
		s.Spec.RolloutStrategy = *manifest.Spec.RolloutStrategy.DeepCopy()
	})
}

var deliveries = map[string]delivery{"server-side": serverSide, "client-side": clientSide, "replaced": replaced, "edited": edited}

// adoptApplied adopts a workload that kubectl apply created from a manifest.
func (e *env) adoptApplied(manifest *lws.LeaderWorkerSet) *workload {
	e.t.Helper()
	object := manifest.DeepCopy()
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, corev1.LastAppliedConfigAnnotation, asJSON(plain(manifest)))
	return e.adopt(object)
}

// awaitReconciled waits until LWS has reconciled the current spec. The absence of a rolling update can't be awaited: it adds a
// group instead, which LWS creates in the same reconcile in which it would roll the others.
func (w *workload) awaitReconciled() {
	w.t.Helper()
	w.scale(replicasOf(w.get()) + 1)
	w.awaitReady()
}

// Applying a manifest again removes the hold, however it is applied, with a new template and later without. With the policy no
// group rolls although no driver runs, and the requested settings are noted; without it every group rolls.
//
// Proves: The admission policy holds a template before the driver observes it.
func TestAdmissionKeepsHold(t *testing.T) {
	t.Parallel()
	for _, policy := range []bool{true, false} {
		t.Run(fmt.Sprintf("policy=%t", policy), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, cluster.Shared(t))
			if policy {
				e.admit()
			} else {
				e.observer.Waive()
				e.observer.waive(ruleHold)
			}
			e.driver = driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
			first := map[string]*workload{}
			for name := range deliveries {
				first[name] = e.adoptApplied(model(name, 2, 2, rolling("1", "0", 0)))
			}
			e.driver.Stop()
			for name, deliver := range deliveries {
				t.Run(name, func(t *testing.T) {
					w := e.in(t).existing(name)
					before, record := w.stablePods(), w.get().Annotations[recordAnnotation]
					next := model(name, 2, 2, rolling("2", "50%", 0), image("v2"))
					deliver(w, next)
					if !policy {
						w.eventually("every group rolls", func(context.Context) error {
							for _, p := range w.stablePods() {
								if p.Spec.Containers[0].Image != "example.com/model:v2" {
									return fmt.Errorf("%s runs %s", p.Name, p.Spec.Containers[0].Image)
								}
							}
							return nil
						})
						return
					}
					w.mustBeHeld(record, map[string]string{wantedPartition: "0", wantedMaxUnavailable: "2", wantedMaxSurge: "50%"})
					w.awaitReconciled()
					w.sameGroupsBelow(before, len(before))
					w.mustRun("v1")
					// The next sync does not change the template, which still waits.
					next.Spec.Replicas = ptr.To(replicasOf(w.get()))
					deliver(w, next)
					w.mustBeHeld(record, map[string]string{wantedPartition: "0", wantedMaxUnavailable: "2", wantedMaxSurge: "50%"})
					w.awaitReconciled()
					w.sameGroupsBelow(before, len(before))
					w.mustRun("v1")
				})
			}
		})
	}
}

// mustBeHeld fails unless the hold and the record are in place and these requested settings are noted.
func (w *workload) mustBeHeld(record string, wanted map[string]string) {
	w.t.Helper()
	object := w.get()
	require.True(w.t, isHold(object.Spec.RolloutStrategy.RollingUpdateConfiguration), "not held: %s", asJSON(object.Spec.RolloutStrategy))
	got := object.Annotations[recordAnnotation]
	assert.Equal(w.t, record, got, "the record was %s, now it is %s", record, got)
	if got := notes(object); !maps.Equal(got, wanted) {
		w.t.Errorf("the policy noted %v, want %v", got, wanted)
	}
}

// notes returns the policy's annotations of a workload.
func notes(object *lws.LeaderWorkerSet) map[string]string {
	found := map[string]string{}
	for _, name := range []string{wantedPartition, wantedMaxUnavailable, wantedMaxSurge} {
		if value, ok := object.Annotations[name]; ok {
			found[name] = value
		}
	}
	return found
}

// Per request: what the policy enforces, what it notes and what it leaves unchanged.
//
// Proves: The admission policy holds a template before the driver observes it.
func TestAdmissionRequests(t *testing.T) {
	t.Parallel()
	e := newAdmissionEnv(t)
	saved := func(change func(*lws.RollingUpdateConfiguration)) func(*lws.LeaderWorkerSet) {
		return func(s *lws.LeaderWorkerSet) { change(s.Spec.RolloutStrategy.RollingUpdateConfiguration) }
	}
	held := e.adoptApplied(model("held", 2, 1, rolling("25%", "1", 0)))
	e.driver.Stop()
	record := held.get().Annotations[recordAnnotation]

	for _, test := range []struct {
		name   string
		change func(*lws.LeaderWorkerSet)
		want   map[string]string
	}{
		{"label", func(s *lws.LeaderWorkerSet) { s.Labels = map[string]string{"a": "b"} }, map[string]string{}},
		{"template", image("v2"), map[string]string{}},
		{"maxUnavailable", saved(func(c *lws.RollingUpdateConfiguration) { c.MaxUnavailable.IntVal = 2 }), map[string]string{wantedMaxUnavailable: "2"}},
		{"then maxSurge", saved(func(c *lws.RollingUpdateConfiguration) { c.MaxSurge.IntVal = 3 }), map[string]string{wantedMaxUnavailable: "2", wantedMaxSurge: "3"}},
		{"the last request counts", saved(func(c *lws.RollingUpdateConfiguration) { c.MaxSurge.IntVal = 1 }), map[string]string{wantedMaxUnavailable: "2", wantedMaxSurge: "1"}},
		{
			"no configuration means LWS's defaults", func(s *lws.LeaderWorkerSet) { s.Spec.RolloutStrategy.RollingUpdateConfiguration = nil },
			map[string]string{wantedPartition: "0", wantedMaxUnavailable: "1", wantedMaxSurge: "0"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := e.in(t).existing("held")
			w.edit(test.change)
			w.mustBeHeld(record, test.want)
		})
	}

	for name, patch := range map[string]string{
		"no percentage": `{"maxUnavailable": "many"}`, "too much": `{"maxSurge": "101%"}`, "negative": `{"maxSurge": -1}`, "negative partition": `{"partition": -1}`,
	} {
		t.Run("refused by LWS: "+name, func(t *testing.T) {
			body := fmt.Appendf(nil, `{"spec":{"rolloutStrategy":{"rollingUpdateConfiguration":%s}}}`, patch)
			sets := e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace)
			if got, err := sets.Patch(t.Context(), "held", types.MergePatchType, body, metav1.PatchOptions{}); err == nil {
				t.Errorf("accepted: %s, %v", asJSON(got.Spec.RolloutStrategy), notes(got))
			}
		})
	}

	t.Run("another client names Lockstep's field manager", func(t *testing.T) {
		w := e.in(t).existing("held")
		editor, operator, _ := w.tenants()
		remove := []byte(`{"spec":{"rolloutStrategy":{"rollingUpdateConfiguration":{"partition":0,"maxUnavailable":1,"maxSurge":0}}}}`)
		for _, test := range []struct {
			user    string
			client  dynamic.Interface
			manager string
			held    bool
		}{
			{"editor", editor, "lockstep", true},
			{"operator", operator, "kubectl-edit", true},
			{"operator", operator, "lockstep", false},
		} {
			got, err := test.client.Resource(setsResource).Namespace(w.namespace).Patch(t.Context(), "held", types.MergePatchType, remove,
				metav1.PatchOptions{FieldManager: test.manager, DryRun: []string{metav1.DryRunAll}})
			require.NoError(t, err)
			partition, _, _ := unstructured.NestedInt64(got.Object, "spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition")
			assert.Equal(t, test.held, partition == holdPartition,
				"%s as %s: partition %d, held should be %t", test.user, test.manager, partition, test.held)
		}
	})
	t.Run("the record alone can be removed", func(t *testing.T) {
		w := e.in(t).existing("held")
		w.edit(func(s *lws.LeaderWorkerSet) { delete(s.Annotations, recordAnnotation) })
		require.Empty(t, w.get().Annotations[recordAnnotation], "the record was restored")
		w.edit(rolling("1", "1", 0))
		c := w.get().Spec.RolloutStrategy.RollingUpdateConfiguration
		assert.False(t, isHold(c), "a workload that is not managed is held: %s", asJSON(c))
	})
	t.Run("an unmanaged workload rolls", func(t *testing.T) {
		w := e.in(t).deploy(model("unmanaged", 2, 1, rolling("1", "0", 0)))
		w.edit(image("v2"))
		w.eventually("it rolls", func(context.Context) error {
			for _, p := range w.stablePods() {
				if p.Spec.Containers[0].Image != "example.com/model:v2" {
					return fmt.Errorf("%s runs %s", p.Name, p.Spec.Containers[0].Image)
				}
			}
			return nil
		})
	})
}

// Releases under the policy end as they do without it. Settings that are applied in between are those that a promotion rolls
// by and Disown restores.
//
// Proves: The admission policy holds a template before the driver observes it.
// Proves (test, promote_and_disown): Under the admission policy a release ends as without it.
func TestAdmissionReleases(t *testing.T) {
	t.Parallel()
	e := newAdmissionEnv(t)
	t.Run("promote and disown", func(t *testing.T) {
		w := e.in(t).adoptApplied(model("promote", 4, 2, rolling("1", "0", 0)))
		next := model("promote", 4, 2, rolling("50%", "1", 0), image("v2"))
		w.driver.Stop()
		serverSide(w, next)
		w.driver.Restart()
		before := w.stablePods()
		w.initialize("r1", quarters())
		assert.Empty(t, notes(w.get()), "the driver left the notes")
		for b := range int32(3) {
			w.upgrade("r1", b)
			serverSide(w, next)
		}
		w.sameGroups(before)
		_, err := w.tryFinalize("r1", promote, nil)
		require.NoError(t, err)
		serverSide(w, next) // A sync does not stop a promotion.
		w.finalize("r1", promote)
		w.mustRun("v2")
		w.mustBeIdle()
		c := recordOf(w.get()).Saved
		assert.True(t, c.MaxUnavailable.String() == "50%" && c.MaxSurge.String() == "1", "saved is %s", asJSON(c))
		w.disown(w.ref())
		object := w.get()
		assert.Equal(t, asJSON(next.Spec.RolloutStrategy.RollingUpdateConfiguration), asJSON(object.Spec.RolloutStrategy.RollingUpdateConfiguration),
			"Disown restored")
		assert.True(t, len(notes(object)) == 0 && object.Annotations[recordAnnotation] == "", "annotations are left: %v", object.Annotations)
	})
}

// One request in mid-promotion reverts the template and changes the rolling update settings: both take effect.
//
// Proves: The admission policy holds a template before the driver observes it.
func TestAdmissionTemplateRevertedInPromotion(t *testing.T) {
	t.Parallel()
	e := newAdmissionEnv(t)
	// The policy's hold precedes the driver's decision, and LWS may have started on the next group just before.
	e.observer.Waive()
	e.observer.waive(ruleHold, ruleStableUntouched)
	starting := annotated("test.lockstep.dev/startup", "300ms")
	w := e.adoptApplied(model("model", 4, 2, rolling("1", "0", 0), starting))
	serverSide(w, model("model", 4, 2, rolling("1", "0", 0), starting, image("v2")))
	w.initialize("r1", policy("100%"))
	w.upgrade("r1", 0)
	w.promoteUntil("r1", 1)
	serverSide(w, model("model", 4, 2, rolling("2", "0", 0), starting))
	w.awaitState(pb.State_STATE_ROLLED_BACK)
	w.mustRun("v1")
	w.mustBeIdle()
	c := recordOf(w.get()).Saved
	assert.Equal(t, "2", c.MaxUnavailable.String(), "the settings of the request are not saved: %s", asJSON(c))
}

// The template changes in mid-promotion while no driver runs: with the policy no group rolls to it before the driver has
// restarted and a host has released it; without it groups roll to it.
//
// Proves: The admission policy holds a template before the driver observes it.
func TestAdmissionTemplateInPromotion(t *testing.T) {
	t.Parallel()
	for _, admitted := range []bool{true, false} {
		t.Run(fmt.Sprintf("policy=%t", admitted), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, cluster.Shared(t))
			e.observer.Waive()
			e.observer.waive(ruleStableUntouched, ruleAvailable, ruleHold) // Groups are at two revisions when the release starts over.
			if admitted {
				e.admit()
			}
			e.driver = driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
			w := e.adopt(model("model", 4, 2, rolling("1", "1", 0), annotated("test.lockstep.dev/startup", "300ms")))
			w.edit(image("v2"))
			w.initialize("r1", policy("100%"))
			w.upgrade("r1", 0)
			w.promoteUntil("r1", 1)
			w.driver.Kill()
			w.edit(image("v3"))
			if !admitted {
				w.eventually("a group rolls to the new template", func(context.Context) error {
					for _, p := range w.stablePods() {
						if p.Spec.Containers[0].Image == "example.com/model:v3" {
							return nil
						}
					}
					return fmt.Errorf("none yet")
				})
				return
			}
			if object := w.get(); !isHold(object.Spec.RolloutStrategy.RollingUpdateConfiguration) {
				t.Fatalf("not held: %s", asJSON(object.Spec.RolloutStrategy))
			}
			w.eventually("LWS has reconciled the new template", func(context.Context) error {
				object := w.get()
				s := object.Status
				if s.ObservedGeneration != object.Generation || s.ReadyReplicas != 4 || s.Replicas != 4 {
					return fmt.Errorf("%d of %d groups are ready", s.ReadyReplicas, s.Replicas)
				}
				return nil
			})
			for _, p := range w.stablePods() {
				assert.NotEqual(t, "example.com/model:v3", p.Spec.Containers[0].Image, "%s rolled to a template that was not released", p.Name)
			}
			w.driver.Restart()
			w.await("the release starts over", func(c *pb.BatchContext) bool { return c.GetState() == pb.State_STATE_HOLDING })
			c := recordOf(w.get()).Saved
			assert.True(t, c.MaxUnavailable.String() == "1" && c.MaxSurge.String() == "1", "the user's own settings became %s", asJSON(c))
			w.upgrade("r1", 0)
			w.finalize("r1", promote)
			w.mustRun("v3")
			w.mustBeIdle()
		})
	}
}
