// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

// An editor of DisaggregatedSets sets no marks in roles and their pod templates, which LeaderWorkerSet copies to children: the request itself
// is refused. Users who may drive the releases of the namespace set them.
//
// Proves: Marks in requests for the status; the driver's account touches only what has its marks.
func TestDisaggregatedMarks(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	editor, operator := tenant.Pair(t, e.cluster, e.namespace, rbacv1.PolicyRule{
		APIGroups: []string{roleSetsResource.Group}, Resources: []string{roleSetsResource.Resource}, Verbs: []string{"*"},
	})
	manifest := func(mark string) string {
		return suite.RolesManifest("llm", 1, 1, func(string) string {
			return fmt.Sprintf(`{metadata: {labels: {%q: "true"}}, spec: {containers: [{name: server, image: "example.com/model:v1"}]}}`, mark)
		})
	}
	e.eventually("a set with marks is refused", func(context.Context) error {
		return tenant.Refused(editor.Create(roleSetsResource, manifest("lockstep.dev/serving")), e.namespace, "lockstep.dev/serving on disaggregatedsets")
	})
	require.NoError(t, editor.Create(roleSetsResource, manifest("test.lockstep.dev/a")))
	patch := func(as tenant.User, options metav1.PatchOptions, op, path, value string) error {
		body := fmt.Appendf(nil, `[{"op":%q,"path":"/spec/roles/%s","value":%s}]`, op, path, value)
		_, err := as.Resource(roleSetsResource).Namespace(e.namespace).Patch(t.Context(), "llm", types.JSONPatchType, body, options)
		return err
	}
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	const template = "/spec/leaderWorkerTemplate/"
	set := func(as tenant.User, path, field string) error {
		return patch(as, dry, "add", path, `{"`+field+`":{"lockstep.dev/x":"y"}}`)
	}
	for _, path := range []string{"1/metadata", "0" + template + "workerTemplate/metadata"} {
		for _, field := range []string{"labels", "annotations"} {
			assert.NoError(t, tenant.Refused(set(editor, path, field), e.namespace, "lockstep.dev/x"), "%s of %s", field, path)
			assert.NoError(t, set(operator, path, field), "an operator, %s of %s", field, path)
		}
	}
	leader := `{"metadata":{"labels":{"lockstep.dev/x":"y"}},"spec":{"containers":[{"name":"server","image":"example.com/model:v1"}]}}`
	assert.NoError(t, tenant.Refused(patch(editor, dry, "add", "1"+template+"leaderTemplate", leader), e.namespace, "lockstep.dev/x"))
	third := `{"name":"encode","metadata":{"labels":{"lockstep.dev/x":"y"}},"spec":{"replicas":1,"leaderWorkerTemplate":{"workerTemplate":` + leader + `}}}`
	assert.NoError(t, tenant.Refused(patch(editor, dry, "add", "-", third), e.namespace, "lockstep.dev/x, lockstep.dev/x"))

	require.NoError(t, patch(operator, metav1.PatchOptions{}, "add", "1/metadata", `{"labels":{"lockstep.dev/x":"y"}}`))
	assert.NoError(t, patch(editor, dry, "replace", "1"+template+"workerTemplate/spec/containers/0/image", `"example.com/model:v2"`),
		"an edit beside a mark")
	assert.NoError(t, tenant.Refused(patch(editor, dry, "replace", "1/metadata", "{}"), e.namespace, "lockstep.dev/x"), "a mark is removed")
}
