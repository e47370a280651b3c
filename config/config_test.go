// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/argo"
)

// The policy refers to annotations, field manager and hold of the driver. test/e2e tests its decisions.
func TestAdmissionMatchesDriver(t *testing.T) {
	manifest, err := Manifests("admission/policy", "admission/binding")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(manifest), "---\n")
	var policy admissionv1.MutatingAdmissionPolicy
	var binding admissionv1.MutatingAdmissionPolicyBinding
	if err := yaml.UnmarshalStrict([]byte(parts[0]), &policy); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(parts[1]), &binding); err != nil {
		t.Fatal(err)
	}
	if binding.Spec.PolicyName != policy.Name {
		t.Errorf("the binding is of %s, the policy is %s", binding.Spec.PolicyName, policy.Name)
	}
	for _, word := range append(record.WantedAnnotations(), record.RecordAnnotation, `!= "`+record.FieldManager+`"`) {
		if !strings.Contains(parts[0], word) {
			t.Errorf("the policy lacks %s", word)
		}
	}
	var hold, want map[string]any
	for _, v := range policy.Spec.Variables {
		if v.Name == "hold" {
			if err := json.Unmarshal([]byte(v.Expression), &hold); err != nil {
				t.Fatal(err)
			}
		}
	}
	raw, err := json.Marshal(record.Hold())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	if len(hold) != len(want) {
		t.Errorf("the policy's hold is %v, the driver's %v", hold, want)
	}
	for field, value := range want {
		if hold[field] != value {
			t.Errorf("%s is %v in the policy's hold, %v in the driver's", field, hold[field], value)
		}
	}
}

// The policies refer to names of the driver and its hosts. test/e2e, test/argo, test/kruise and test/batchrelease test their decisions.
func TestPermissionsMatchDriver(t *testing.T) {
	for file, words := range map[string][]string{
		"permissions/marks": append(record.WantedAnnotations(), record.HistoryLimitAnnotation, access.Group, access.Resource, string(access.Drive)),
		"permissions/hosts": {
			`"` + argo.PluginName + `"`, access.Group, access.Resource, string(access.Drive), v1alpha1.LabelKeyControllerInstanceID,
			`"` + access.Group + `/`, `"` + lws.GroupVersion.Group + `/`, `"` + disaggregated.GroupVersion.Group + `/`,
		},
		"permissions/driver": {
			"system:serviceaccount:" + Namespace + ":" + ServiceAccount, record.RoleLabel, record.RecordAnnotation, lws.SetNameLabelKey,
		},
	} {
		manifest, err := Manifests(file)
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(string(manifest), "---\n")
		var policy admissionv1.ValidatingAdmissionPolicy
		var binding admissionv1.ValidatingAdmissionPolicyBinding
		if err := yaml.UnmarshalStrict([]byte(parts[0]), &policy); err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(parts[1]), &binding); err != nil {
			t.Fatal(err)
		}
		if binding.Spec.PolicyName != policy.Name {
			t.Errorf("%s: the binding is of %s, the policy is %s", file, binding.Spec.PolicyName, policy.Name)
		}
		for _, word := range words {
			if !strings.Contains(parts[0], word) {
				t.Errorf("%s lacks %s", file, word)
			}
		}
	}
}
