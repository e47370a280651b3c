// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// HPA is a HorizontalPodAutoscaler in the API server.
type HPA struct {
	*autoscalingv2.HorizontalPodAutoscaler
}

// hpa has a behavior of policies up/down, none if both are empty, and the note if there is one.
func hpa(up, down, note string) HPA {
	h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "vllm"}}
	h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{
		APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "vllm",
	}
	h.Spec.MaxReplicas = 8
	if up != "" {
		rules := func(p string) *autoscalingv2.HPAScalingRules {
			return &autoscalingv2.HPAScalingRules{
				SelectPolicy: ptr.To(autoscalingv2.ScalingPolicySelect(p)), StabilizationWindowSeconds: ptr.To[int32](7),
			}
		}
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(up), ScaleDown: rules(down)}
	}
	if note != "" {
		h.Annotations = map[string]string{NoteAnnotation: note}
	}
	return HPA{h}
}

// patched is what the API server makes of a merge patch, but for its defaults.
func patched(t *testing.T, object, patch, into any) {
	t.Helper()
	before, err := json.Marshal(object)
	require.NoError(t, err)
	change, err := json.Marshal(patch)
	require.NoError(t, err)
	after, err := jsonpatch.MergePatch(before, change)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(after, into))
}

func (h HPA) hold(t *testing.T, hold Hold) HPA {
	t.Helper()
	p, err := OfHPA(h.HorizontalPodAutoscaler).Hold("vllm", hold)
	require.NoError(t, err)
	next := &autoscalingv2.HorizontalPodAutoscaler{}
	patched(t, h.HorizontalPodAutoscaler, p, next)
	return HPA{next}
}

func (h HPA) release(t *testing.T) HPA {
	t.Helper()
	p, err := OfHPA(h.HorizontalPodAutoscaler).Release()
	require.NoError(t, err)
	next := &autoscalingv2.HorizontalPodAutoscaler{}
	patched(t, h.HorizontalPodAutoscaler, p, next)
	return HPA{next}
}

func (h HPA) scales() Directions { return OfHPA(h.HorizontalPodAutoscaler).Scales }

func policies(h HPA) string {
	if h.Spec.Behavior == nil {
		return "none"
	}
	return policyOf(h.Spec.Behavior.ScaleUp) + "/" + policyOf(h.Spec.Behavior.ScaleDown)
}

func policyOf(r *autoscalingv2.HPAScalingRules) string { return string(ptr.Deref(r.SelectPolicy, "")) }

func TestHPA(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		user         HPA
		edit         func(*autoscalingv2.HorizontalPodAutoscaler)
		want         string
	}{
		{name: "bare", reason: "one without behavior has none again", user: hpa("", "", ""), want: "none"},
		{name: "both", reason: "each direction has its own policy back", user: hpa("Max", "Min", ""), want: "Max/Min"},
		{name: "one-disabled", reason: "what the user disabled stays disabled", user: hpa("Max", "Disabled", ""), want: "Max/Disabled"},
		{
			name: "edited", reason: "an edit during the release is the user's new configuration", user: hpa("Max", "Max", ""),
			edit: func(h *autoscalingv2.HorizontalPodAutoscaler) {
				h.Spec.Behavior.ScaleUp.SelectPolicy = ptr.To(autoscalingv2.MinChangePolicySelect)
			},
			want: "Min/Max",
		},
		{
			name: "applied-without-behavior", reason: "so is taking the behavior out", user: hpa("Max", "Min", ""),
			edit: func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.Behavior = nil },
			want: "none",
		},
		{
			name: "replaced", reason: "an object that was replaced has lost the note and the hold, and is as the user wants it", user: hpa("Max", "Min", ""),
			edit: func(h *autoscalingv2.HorizontalPodAutoscaler) {
				next := hpa("Min", "Min", "")
				h.Spec, h.Annotations = next.Spec, nil
			},
			want: "Min/Min",
		},
	} {
		for _, hold := range []Hold{HoldAll, HoldDown} {
			t.Run(test.name+"/"+string(hold), func(t *testing.T) {
				want := Directions{Up: hold == HoldDown && policyUp(test.user) != disabled}
				held := test.user.hold(t, hold)
				if held.scales() != want {
					t.Fatalf("held as %s, and it scales %+v", policies(held), held.scales())
				}
				if test.edit != nil {
					test.edit(held.HorizontalPodAutoscaler)
					if released := held; released.Annotations != nil {
						// Released as it was found, by a driver that comes too late for a repair.
						if got := policies(released.release(t)); got != test.want {
							t.Errorf("released without repair: %s, want %s: %s", got, test.want, test.reason)
						}
					}
					held = held.hold(t, hold)
					if held.scales() != want {
						t.Fatalf("repaired to %s, and it scales %+v", policies(held), held.scales())
					}
				}
				got := held.release(t)
				if policies(got) != test.want || got.Annotations[NoteAnnotation] != "" {
					t.Errorf("released with %s, want %s: %s", policies(got), test.want, test.reason)
				}
				if test.edit == nil {
					assert.Empty(t, cmp.Diff(test.user.Spec, got.Spec), "not restored as it was (-want +got)")
				}
			})
		}
	}
}

func policyUp(h HPA) string {
	if h.Spec.Behavior == nil {
		return ""
	}
	return policyOf(h.Spec.Behavior.ScaleUp)
}

// One release holds both directions and the next only one, or the other way round: each hold replaces the other in one
// write, and the user's settings are restored.
func TestHPAHoldChanges(t *testing.T) {
	for _, user := range []HPA{hpa("", "", ""), hpa("Max", "Min", ""), hpa("Disabled", "Max", ""), hpa("Max", "Disabled", "")} {
		up := policyUp(user) != disabled
		down := user.hold(t, HoldAll).hold(t, HoldDown)
		if got := down.scales(); got != (Directions{Up: up}) {
			t.Errorf("%s: from all to down it scales %+v", policies(user), got)
		}
		all := user.hold(t, HoldDown).hold(t, HoldAll)
		if all.scales().Any() {
			t.Errorf("%s: from down to all it scales %+v", policies(user), all.scales())
		}
		for _, held := range []HPA{down, all} {
			if diff := cmp.Diff(user.Spec, held.release(t).Spec); diff != "" {
				t.Errorf("%s: not restored (-want +got):\n%s", policies(user), diff)
			}
		}
	}
}

// What the user disables while only the other direction is held stays disabled.
func TestHPADisabledWhileHeldDown(t *testing.T) {
	held := hpa("Max", "Max", "").hold(t, HoldDown)
	held.Spec.Behavior.ScaleUp.SelectPolicy = ptr.To(autoscalingv2.DisabledPolicySelect)
	assert.Equal(t, "Disabled/Max", policies(held.hold(t, HoldDown).release(t)), "released with")
}

func TestToZero(t *testing.T) {
	for name, test := range map[string]struct {
		minReplicas *int32
		spec        map[string]any
		hpa, keda   bool
	}{
		"default":        {nil, map[string]any{}, false, true},
		"zero":           {ptr.To[int32](0), map[string]any{"minReplicaCount": int64(0)}, true, true},
		"one":            {ptr.To[int32](1), map[string]any{"minReplicaCount": int64(1)}, false, false},
		"idle at zero":   {ptr.To[int32](2), map[string]any{"minReplicaCount": int64(2), "idleReplicaCount": int64(0)}, false, true},
		"idle above one": {ptr.To[int32](3), map[string]any{"minReplicaCount": int64(3), "idleReplicaCount": int64(1)}, false, false},
	} {
		h := hpa("", "", "")
		h.Spec.MinReplicas = test.minReplicas
		o := scaledObject("", "", nil)
		o.Object["spec"] = test.spec
		hpa, keda := OfHPA(h.HorizontalPodAutoscaler).ToZero, OfScaledObject(o).ToZero
		assert.True(t, hpa == test.hpa && keda == test.keda, "%s: HPA %t, ScaledObject %t", name, hpa, keda)
	}
}

// A field that is added while a bare autoscaler is held stays, beside the API server's defaults.
func TestHPAWithoutBehaviorEdited(t *testing.T) {
	held := hpa("", "", "").hold(t, HoldAll)
	held.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = ptr.To[int32](60)
	got := held.release(t)
	assert.True(t, got.Spec.Behavior != nil && ptr.Deref(got.Spec.Behavior.ScaleDown.StabilizationWindowSeconds, 0) == 60 && len(got.Spec.Behavior.ScaleUp.Policies) == 2,
		"released with %+v", got.Spec.Behavior)
	if policies(got) != "/" {
		t.Errorf("policies %q, want the API server's default", policies(got))
	}
}

func TestTarget(t *testing.T) {
	for name, test := range map[string]struct{ version, kind, want string }{
		"ours":          {"leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "vllm"},
		"other-version": {"leaderworkerset.x-k8s.io/v2", "LeaderWorkerSet", "vllm"},
		"no-version":    {"", "LeaderWorkerSet", "vllm"},
		"other-kind":    {"apps/v1", "Deployment", ""},
		"other-group":   {"example.com/v1", "LeaderWorkerSet", ""},
		"default-kind":  {"", "", ""},
	} {
		h := hpa("", "", "")
		h.Spec.ScaleTargetRef.APIVersion, h.Spec.ScaleTargetRef.Kind = test.version, test.kind
		assert.Equal(t, test.want, OfHPA(h.HorizontalPodAutoscaler).Workload, "%s: HPA of", name)
		assert.Equal(t, test.want, OfScaledObject(scaledObject(test.version, test.kind, nil)).Workload, "%s: ScaledObject of", name)
	}
}

func TestReadNote(t *testing.T) {
	for value, ok := range map[string]bool{
		`{"hold":"all","workload":"vllm"}`:                                               true,
		`{"hold":"all","workload":"vllm","user":{"scaleUp":"Max"}}`:                      true,
		`{"hold":"all","workload":"vllm","user":{"autoscaling.keda.sh/paused":"false"}}`: true,
		`{"workload":"vllm"}`:             false,
		`{"workload":"vllm","hold":"up"}`: false,
		``:                                false,
		`{}`:                              false,
		`{"hold":"all","workload":"vllm","user":{"scaleUp":"Fast"}}`: false,
		`{"hold":"all","workload":"vllm","replicas":3}`:              false,
		`{"hold":"all","workload":"vllm"}{"workload":"vllm"}`:        false,
		`{"hold":"all","workload":"vllm","bare":true,"more":null}`:   false,
	} {
		_, err := ReadNote(map[string]string{NoteAnnotation: value})
		assert.Equal(t, ok, err == nil, "%s: %v", value, err)
	}
	n, err := ReadNote(nil)
	assert.True(t, n == nil && err == nil, "no annotations: %v, %v", n, err)
}

// A note that can't be trusted is replaced while everything that it could tell is still in the spec.
func TestUnreadableNote(t *testing.T) {
	held := hpa("Max", "Min", "nonsense").hold(t, HoldAll)
	assert.Equal(t, "Max/Min", policies(held.release(t)), "released with")
	_, err := OfHPA(hpa("Disabled", "Disabled", "nonsense").HorizontalPodAutoscaler).Release()
	assert.Error(t, err, "released by a note that can't be read")
}

// A cache keeps what a hold needs of an object, and no more.
func TestAutoscalerIsSmall(t *testing.T) {
	h := hpa("Max", "Min", `{"hold":"all","workload":"vllm"}`)
	h.Annotations["example.com/other"], h.Labels = "x", map[string]string{"team": "serving"}
	h.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	want := metav1.ObjectMeta{Name: "vllm", Annotations: map[string]string{NoteAnnotation: h.Annotations[NoteAnnotation]}}
	assert.Empty(t, cmp.Diff(want, OfHPA(h.HorizontalPodAutoscaler).ObjectMeta))
	want.Annotations = map[string]string{pausedAnnotation: "true"}
	o := scaledObject("", "", map[string]any{pausedAnnotation: "true", "example.com/other": "x"})
	assert.Empty(t, cmp.Diff(want, OfScaledObject(o).ObjectMeta))
}
