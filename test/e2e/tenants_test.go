// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

var (
	setsResource     = lws.GroupVersion.WithResource("leaderworkersets")
	servicesResource = corev1.SchemeGroupVersion.WithResource("services")
)

// editing is what the ClusterRole edit allows, with the kinds that a cluster aggregates to it.
var editing = []rbacv1.PolicyRule{{
	APIGroups: []string{"", "leaderworkerset.x-k8s.io", "autoscaling"},
	Resources: []string{"leaderworkersets", "leaderworkersets/scale", "services", "horizontalpodautoscalers"},
	Verbs:     []string{"*"},
}}

// tenants are the users of a namespace: an editor, an editor who may drive releases, and an editor who may drive those of
// another namespace only.
func (e *env) tenants() (editor, operator, neighbor dynamic.Interface) {
	e.t.Helper()
	drive := []rbacv1.PolicyRule{tenant.Drive()}
	other := e.cluster.Namespace(e.t)
	return tenant.New(e.t, e.cluster, e.namespace, "editor", map[string][]rbacv1.PolicyRule{e.namespace: editing}),
		tenant.New(e.t, e.cluster, e.namespace, "operator", map[string][]rbacv1.PolicyRule{e.namespace: append(drive, editing...)}),
		tenant.New(e.t, e.cluster, e.namespace, "neighbor", map[string][]rbacv1.PolicyRule{e.namespace: editing, other: drive})
}

// asUser returns a manifest as an object of a tenant's client.
func asUser(object any, kind string) *unstructured.Unstructured {
	var plain map[string]any
	if err := json.Unmarshal([]byte(asJSON(object)), &plain); err != nil {
		panic(err)
	}
	delete(plain, "status")
	plain["kind"] = kind
	return &unstructured.Unstructured{Object: plain}
}

// An editor of LeaderWorkerSets and Services changes everything but the marks, whatever the request; users who may drive the
// releases of the namespace change marks too, and those of another namespace do not.
//
// Proves (test): Access: callers over TCP, who began and ended a release, marks.
func TestTenantsMarks(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	editor, operator, neighbor := e.tenants()
	e.observer.Waive()
	e.observer.waive(ruleHold) // The record is a forged one.
	const owned, frontend = "owned", "frontend"

	first := model(owned, 1, 1, rolling("1", "0", 0))
	first.Annotations = map[string]string{"lockstep.dev/release": "{}", "lockstep.dev/history-limit": "5"}
	first.Labels = map[string]string{"lockstep.dev/workload": "vllm"}
	first.Finalizers = []string{"lockstep.dev/release"}
	first.TypeMeta = metav1.TypeMeta{APIVersion: lws.GroupVersion.String()}
	create := func(as dynamic.Interface) error {
		_, err := as.Resource(setsResource).Namespace(e.namespace).Create(t.Context(), asUser(first, "LeaderWorkerSet"), metav1.CreateOptions{})
		return err
	}
	e.eventually("the policy is in force", func(context.Context) error {
		err := create(editor)
		if err == nil { // The policy is not in force yet.
			_ = e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace).Delete(t.Context(), owned, metav1.DeleteOptions{})
		}
		return tenant.Refused(err, e.namespace, "system:serviceaccount:"+e.namespace+":editor", "lockstep.dev/release", "lockstep.dev/workload", "leaderworkersets")
	})
	assert.NoError(t, tenant.Refused(create(neighbor), e.namespace, ":neighbor"), "an operator of another namespace")
	require.NoError(t, create(operator), "an operator")

	service := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: frontend, Annotations: map[string]string{"lockstep.dev/isolation": "{}"}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "a"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	_, err := editor.Resource(servicesResource).Namespace(e.namespace).Create(t.Context(), asUser(service, "Service"), metav1.CreateOptions{})
	assert.NoError(t, tenant.Refused(err, e.namespace, "lockstep.dev/isolation", "services"), "Service")
	suite.CreateObject(t, operator.Resource(servicesResource).Namespace(e.namespace), asUser(service, "Service"))

	// Requests for the LeaderWorkerSet, as a dry run so that each finds the same object.
	dry := []string{metav1.DryRunAll}
	patch := func(kind types.PatchType, body string) func(dynamic.ResourceInterface) error {
		return func(r dynamic.ResourceInterface) error {
			_, err := r.Patch(t.Context(), owned, kind, []byte(body), metav1.PatchOptions{DryRun: dry})
			return err
		}
	}
	replace := func(change func(*unstructured.Unstructured)) func(dynamic.ResourceInterface) error {
		return func(r dynamic.ResourceInterface) error {
			return retry.RetryOnConflict(persistent, func() error {
				object, err := r.Get(t.Context(), owned, metav1.GetOptions{})
				if err != nil {
					return err
				}
				change(object)
				_, err = r.Update(t.Context(), object, metav1.UpdateOptions{DryRun: dry, FieldManager: "lockstep"})
				return err
			})
		}
	}
	serverSide := func(metadata string) func(dynamic.ResourceInterface) error {
		return func(r dynamic.ResourceInterface) error {
			body := fmt.Sprintf(`{"apiVersion":"leaderworkerset.x-k8s.io/v1","kind":"LeaderWorkerSet","metadata":%s}`, metadata)
			force := true
			_, err := r.Patch(t.Context(), owned, types.ApplyPatchType, []byte(body),
				metav1.PatchOptions{DryRun: dry, FieldManager: "lockstep", Force: &force})
			return err
		}
	}
	const workers = "/spec/leaderWorkerTemplate/workerTemplate/metadata"
	for name, request := range map[string]struct {
		send func(dynamic.ResourceInterface) error
		mark string
	}{
		"change an annotation":   {patch(types.MergePatchType, `{"metadata":{"annotations":{"lockstep.dev/release":"{\"a\":1}"}}}`), "lockstep.dev/release"},
		"set an annotation":      {patch(types.MergePatchType, `{"metadata":{"annotations":{"lockstep.dev/target":"1"}}}`), "lockstep.dev/target"},
		"remove an annotation":   {patch(types.JSONPatchType, `[{"op":"remove","path":"/metadata/annotations/lockstep.dev~1release"}]`), "lockstep.dev/release"},
		"change a label":         {patch(types.MergePatchType, `{"metadata":{"labels":{"lockstep.dev/workload":"other"}}}`), "lockstep.dev/workload"},
		"remove a label":         {patch(types.JSONPatchType, `[{"op":"remove","path":"/metadata/labels/lockstep.dev~1workload"}]`), "lockstep.dev/workload"},
		"set a finalizer":        {patch(types.JSONPatchType, `[{"op":"add","path":"/metadata/finalizers/-","value":"lockstep.dev/kruise"}]`), "lockstep.dev/kruise"},
		"remove the finalizer":   {patch(types.MergePatchType, `{"metadata":{"finalizers":null}}`), "lockstep.dev/release"},
		"server-side apply":      {serverSide(`{"annotations":{"lockstep.dev/release":"{\"a\":1}"}}`), "lockstep.dev/release"},
		"replace without marks":  {replace(func(o *unstructured.Unstructured) { o.SetAnnotations(nil); o.SetLabels(nil) }), "lockstep.dev/release"},
		"replace with a mark":    {replace(func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"lockstep.dev/role": "canary"}) }), "lockstep.dev/role"},
		"template's labels":      {patch(types.JSONPatchType, `[{"op":"add","path":"`+workers+`","value":{"labels":{"lockstep.dev/serving":"true"}}}]`), "lockstep.dev/serving"},
		"template's annotations": {patch(types.MergePatchType, `{"spec":{"leaderWorkerTemplate":{"workerTemplate":{"metadata":{"annotations":{"lockstep.dev/x":"y"}}}}}}`), "lockstep.dev/x"},
	} {
		t.Run(name, func(t *testing.T) {
			for user, client := range map[string]dynamic.Interface{"editor": editor, "neighbor": neighbor} {
				assert.NoError(t, tenant.Refused(request.send(client.Resource(setsResource).Namespace(e.namespace)), e.namespace, request.mark), user)
			}
			assert.NoError(t, request.send(operator.Resource(setsResource).Namespace(e.namespace)), "operator")
		})
	}

	sets := editor.Resource(setsResource).Namespace(e.namespace)
	for name, send := range map[string]func(dynamic.ResourceInterface) error{
		"template":        patch(types.JSONPatchType, `[{"op":"replace","path":"/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":"b"}]`),
		"replicas":        patch(types.MergePatchType, `{"spec":{"replicas":2}}`),
		"own label":       patch(types.MergePatchType, `{"metadata":{"labels":{"team":"a"},"annotations":{"test.lockstep.dev/a":"b"},"finalizers":["example.com/f","lockstep.dev/release"]}}`),
		"history limit":   patch(types.MergePatchType, `{"metadata":{"annotations":{"lockstep.dev/history-limit":"3"}}}`),
		"wanted settings": patch(types.MergePatchType, `{"metadata":{"annotations":{"lockstep.dev/wanted-partition":"3"}}}`),
		"replace, marks kept": replace(func(o *unstructured.Unstructured) {
			o.SetLabels(map[string]string{"lockstep.dev/workload": "vllm", "a": "b"})
		}),
	} {
		t.Run("allowed: "+name, func(t *testing.T) {
			assert.NoError(t, send(sets))
		})
	}
	t.Run("allowed: scale", func(t *testing.T) {
		_, err := sets.Patch(t.Context(), owned, types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{DryRun: dry}, "scale")
		assert.NoError(t, err)
	})

	services := editor.Resource(servicesResource).Namespace(e.namespace)
	_, err = services.Patch(t.Context(), frontend, types.MergePatchType, []byte(`{"spec":{"selector":{"app":"b"}}}`), metav1.PatchOptions{})
	assert.NoError(t, err, "a Service's selector")
	_, err = services.Patch(t.Context(), frontend, types.MergePatchType, []byte(`{"metadata":{"annotations":{"lockstep.dev/isolation":null}}}`), metav1.PatchOptions{})
	assert.NoError(t, tenant.Refused(err, e.namespace, "lockstep.dev/isolation"), "a Service's mark")
	// The cleanup of the namespace needs no driver.
	clear := []byte(`{"metadata":{"finalizers":null}}`)
	_, err = operator.Resource(setsResource).Namespace(e.namespace).Patch(t.Context(), owned, types.MergePatchType, clear, metav1.PatchOptions{})
	assert.NoError(t, err)
}

// A request for the status of a built-in kind may change its metadata, so that it needs the permission for marks, too.
//
// Proves: Marks in requests for the status; the driver's account touches only what has its marks.
func TestTenantsStatus(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	editor, operator := tenant.Pair(t, e.cluster, e.namespace, rbacv1.PolicyRule{
		APIGroups: []string{"", "networking.k8s.io", "autoscaling"}, Resources: []string{"*"}, Verbs: []string{"*"},
	})
	const mark = `{"metadata":{"labels":{"lockstep.dev/role":"canary"}}}`
	for resource, manifest := range map[schema.GroupVersionResource]string{
		servicesResource: `{apiVersion: v1, kind: Service, metadata: {name: own}, spec: {ports: [{port: 80}]}}`,
		{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}: `{apiVersion: networking.k8s.io/v1, kind: Ingress, ` +
			`metadata: {name: own}, spec: {defaultBackend: {service: {name: own, port: {number: 80}}}}}`,
		{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}: `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, ` +
			`metadata: {name: own}, spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: own}}}`,
	} {
		require.NoError(t, editor.Create(resource, manifest))
		e.eventually("the mark of "+resource.Resource+" is refused", func(context.Context) error {
			return tenant.Refused(editor.Patch(resource, "own", mark, "status"), e.namespace, "lockstep.dev/role")
		})
		assert.NoError(t, operator.Patch(resource, "own", mark, "status"), "an operator")
		assert.NoError(t, editor.Patch(resource, "own", `{"metadata":{"labels":{"team":"a"}}}`, "status"), "another label of %s", resource.Resource)
	}
}

// The driver's own account touches only what has its marks, however much RBAC allows.
//
// Proves: Marks in requests for the status; the driver's account touches only what has its marks.
func TestTenantsDriver(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.deploy(model("model", 1, 1))
	path := driver.Kubeconfig(t, e.cluster)
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	kube := kubernetes.NewForConfigOrDie(cfg)
	services := kube.CoreV1().Services(e.namespace)
	service := func(name string, labels map[string]string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "a"}, Ports: []corev1.ServicePort{{Port: 80}}},
		}
	}
	e.eventually("the policy is in force", func(ctx context.Context) error {
		_, err := services.Create(ctx, service("any", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the account of Lockstep's driver may not create these services") {
			return fmt.Errorf("not refused by the policy: %w", err)
		}
		return nil
	})
	suite.Create(t, e.kube.CoreV1().Services(e.namespace), service("users", nil))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "alone"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
	suite.Create(t, e.kube.CoreV1().Pods(e.namespace), pod)
	selector := []byte(`{"spec":{"selector":{"app":"other"}}}`)
	sets := lwsclient.NewForConfigOrDie(cfg).LeaderworkersetV1().LeaderWorkerSets(e.namespace)
	_, errPatch := services.Patch(t.Context(), "users", types.MergePatchType, selector, metav1.PatchOptions{})
	_, errScale := sets.Patch(t.Context(), w.name, types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{})
	for what, err := range map[string]error{
		"patch a Service": errPatch, "delete a Service": services.Delete(t.Context(), "users", metav1.DeleteOptions{}),
		"delete a pod":             kube.CoreV1().Pods(e.namespace).Delete(t.Context(), "alone", metav1.DeleteOptions{}),
		"scale a workload":         errScale,
		"delete a LeaderWorkerSet": sets.Delete(t.Context(), w.name, metav1.DeleteOptions{}),
	} {
		assert.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "they have none of its marks"),
			"%s: not refused by the policy: %v", what, err)
	}
	_, err = services.Create(t.Context(), service("ours", map[string]string{"lockstep.dev/role": "canary"}), metav1.CreateOptions{})
	assert.NoError(t, err)
	assert.NoError(t, services.Delete(t.Context(), "ours", metav1.DeleteOptions{}))
	assert.NoError(t, kube.CoreV1().Pods(e.namespace).Delete(t.Context(), "model-0", metav1.DeleteOptions{}))
}
