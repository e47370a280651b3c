// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package autoscaler

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

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
	if err != nil {
		t.Fatal(err)
	}
	change, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	after, err := jsonpatch.MergePatch(before, change)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(after, into); err != nil {
		t.Fatal(err)
	}
}

func (h HPA) hold(t *testing.T) HPA {
	t.Helper()
	p, err := h.Hold("vllm")
	if err != nil {
		t.Fatal(err)
	}
	next := &autoscalingv2.HorizontalPodAutoscaler{}
	patched(t, h.HorizontalPodAutoscaler, p, next)
	return HPA{next}
}

func (h HPA) release(t *testing.T) HPA {
	t.Helper()
	p, err := h.Release()
	if err != nil {
		t.Fatal(err)
	}
	next := &autoscalingv2.HorizontalPodAutoscaler{}
	patched(t, h.HorizontalPodAutoscaler, p, next)
	return HPA{next}
}

func policies(h HPA) string {
	if h.Spec.Behavior == nil {
		return "none"
	}
	return string(policyOf(h.Spec.Behavior.ScaleUp) + "/" + policyOf(h.Spec.Behavior.ScaleDown))
}

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
		t.Run(test.name, func(t *testing.T) {
			if !test.user.Scales() {
				t.Fatal("the user's does not scale")
			}
			held := test.user.hold(t)
			if held.Scales() {
				t.Fatalf("held as %s, and it scales", policies(held))
			}
			if test.edit != nil {
				test.edit(held.HorizontalPodAutoscaler)
				if released := held; released.Annotations != nil {
					// Released as it was found, which is what a driver does that comes too late for a repair.
					if got := policies(released.release(t)); got != test.want {
						t.Errorf("released without repair: %s, want %s: %s", got, test.want, test.reason)
					}
				}
				held = held.hold(t)
				if held.Scales() {
					t.Fatalf("repaired to %s, and it scales", policies(held))
				}
			}
			got := held.release(t)
			if policies(got) != test.want || got.Annotations[NoteAnnotation] != "" {
				t.Errorf("released with %s, want %s: %s", policies(got), test.want, test.reason)
			}
			if test.edit == nil {
				if diff := cmp.Diff(test.user.Spec, got.Spec); diff != "" {
					t.Errorf("not restored as it was (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// A field that is added while a bare autoscaler is held stays, beside the API server's defaults.
func TestHPAWithoutBehaviorEdited(t *testing.T) {
	held := hpa("", "", "").hold(t)
	held.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = ptr.To[int32](60)
	got := held.release(t)
	if got.Spec.Behavior == nil || ptr.Deref(got.Spec.Behavior.ScaleDown.StabilizationWindowSeconds, 0) != 60 || len(got.Spec.Behavior.ScaleUp.Policies) != 2 {
		t.Errorf("released with %+v", got.Spec.Behavior)
	}
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
		if got := h.Workload(); got != test.want {
			t.Errorf("%s: HPA of %q, want %q", name, got, test.want)
		}
		if got := scaledObject(test.version, test.kind, nil).Workload(); got != test.want {
			t.Errorf("%s: ScaledObject of %q, want %q", name, got, test.want)
		}
	}
}

func TestReadNote(t *testing.T) {
	for value, ok := range map[string]bool{
		`{"workload":"vllm"}`:                         true,
		`{"workload":"vllm","scaleUp":"Max"}`:         true,
		`{"workload":"vllm","paused":"false"}`:        true,
		``:                                            false,
		`{}`:                                          false,
		`{"workload":"vllm","scaleUp":"Fast"}`:        false,
		`{"workload":"vllm","replicas":3}`:            false,
		`{"workload":"vllm"}{"workload":"vllm"}`:      false,
		`{"workload":"vllm","bare":true,"more":null}`: false,
	} {
		if _, err := ReadNote(map[string]string{NoteAnnotation: value}); (err == nil) != ok {
			t.Errorf("%s: %v", value, err)
		}
	}
	if n, err := ReadNote(nil); n != nil || err != nil {
		t.Errorf("no annotations: %v, %v", n, err)
	}
}

// A note that can't be trusted is replaced while everything that it could tell is still in the spec.
func TestUnreadableNote(t *testing.T) {
	held := hpa("Max", "Min", "nonsense").hold(t)
	if got := policies(held.release(t)); got != "Max/Min" {
		t.Errorf("released with %s", got)
	}
	if _, err := hpa("Disabled", "Disabled", "nonsense").Release(); err == nil {
		t.Error("released by a note that can't be read")
	}
}
