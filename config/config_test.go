// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	require.NoError(t, err)
	parts := strings.Split(string(manifest), "---\n")
	var policy admissionv1.MutatingAdmissionPolicy
	var binding admissionv1.MutatingAdmissionPolicyBinding
	require.NoError(t, yaml.UnmarshalStrict([]byte(parts[0]), &policy))
	require.NoError(t, yaml.UnmarshalStrict([]byte(parts[1]), &binding))
	assert.Equal(t, policy.Name, binding.Spec.PolicyName, "the binding is of %s, the policy is %s", binding.Spec.PolicyName, policy.Name)
	for _, word := range append(record.WantedAnnotations(), record.RecordAnnotation, `!= "`+record.FieldManager+`"`) {
		assert.Contains(t, parts[0], word, "the policy lacks %s", word)
	}
	var hold, want map[string]any
	for _, v := range policy.Spec.Variables {
		if v.Name == "hold" {
			require.NoError(t, json.Unmarshal([]byte(v.Expression), &hold))
		}
	}
	raw, err := json.Marshal(record.Hold())
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &want))
	assert.Len(t, hold, len(want), "the policy's hold is %v, the driver's %v", hold, want)
	for field, value := range want {
		assert.True(t, hold[field] == value, "%s is %v in the policy's hold, %v in the driver's", field, hold[field], value)
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
		require.NoError(t, err)
		parts := strings.Split(string(manifest), "---\n")
		var policy admissionv1.ValidatingAdmissionPolicy
		var binding admissionv1.ValidatingAdmissionPolicyBinding
		require.NoError(t, yaml.UnmarshalStrict([]byte(parts[0]), &policy))
		require.NoError(t, yaml.UnmarshalStrict([]byte(parts[1]), &binding))
		assert.Equal(t, policy.Name, binding.Spec.PolicyName,
			"%s: the binding is of %s, the policy is %s", file, binding.Spec.PolicyName, policy.Name)
		for _, word := range words {
			assert.Contains(t, parts[0], word, "%s lacks %s", file, word)
		}
	}
}
