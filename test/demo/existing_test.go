// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsfake "sigs.k8s.io/lws/client-go/clientset/versioned/fake"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

func TestParseFlags(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		args []string
		want string // in the error; empty: accepted
	}{
		{"own control plane", nil, ""},
		{"existing cluster", []string{"-kubeconfig", "f"}, ""},
		{"existing cluster, all flags", []string{"-kubeconfig", "f", "-context", "c", "-yes", "-image", "a", "-new-image", "b"}, ""},
		{"yes on own control plane", []string{"-yes"}, ""},
		{"empty kubeconfig", []string{"-kubeconfig", ""}, "-kubeconfig"},
		{"context without kubeconfig", []string{"-context", "c"}, "-kubeconfig"},
		{"image without kubeconfig", []string{"-image", "a"}, "-kubeconfig"},
		{"argo on an existing cluster", []string{"-kubeconfig", "f", "-host", "argo"}, "HOST=argo"},
		{"kruise on an existing cluster", []string{"-kubeconfig", "f", "-host", "kruise"}, "HOST=kruise"},
		{"traffic on an existing cluster", []string{"-kubeconfig", "f", "-traffic"}, "TRAFFIC=1"},
		{"keep on an existing cluster", []string{"-kubeconfig", "f", "-keep"}, "-keep"},
		{"same images", []string{"-kubeconfig", "f", "-image", "a", "-new-image", "a"}, "two different images"},
		{"unknown host", []string{"-host", "flux"}, "flux"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(tt.args)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("parse(%v) = %v, want an error with %q", tt.args, err, tt.want)
			}
		})
	}
}

const twoContexts = `apiVersion: v1
kind: Config
current-context: %s
clusters:
- {name: one, cluster: {server: "https://one.example", certificate-authority: ca.crt, tls-server-name: api.one.example}}
- {name: two, cluster: {server: "https://two.example"}}
contexts:
- {name: one, context: {cluster: one, user: admin}}
- {name: two, context: {cluster: two, user: admin}}
users:
- {name: admin, user: {token: secret}}
`

func writeKubeconfig(t *testing.T, current string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "config")
	if err := os.WriteFile(path, fmt.Appendf(nil, twoContexts, current), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("CA"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenExistingErrors(t *testing.T) {
	t.Setenv("KUBECONFIG", writeKubeconfig(t, "two"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	tests := []struct {
		name, path, context string
		want                string // the error
	}{
		{"no path", "", "", "empty"},
		{"no file", filepath.Join(t.TempDir(), "none"), "", "no such file"},
		{"no current context", writeKubeconfig(t, `""`), "", "no current context"},
		{"unknown context", writeKubeconfig(t, "one"), "three", `no context "three"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := openExisting(tt.path, tt.context); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("openExisting: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestDriverKubeconfigKeepsServer(t *testing.T) {
	t.Parallel()
	if _, err := openExisting(writeKubeconfig(t, "two"), "one"); err == nil {
		t.Fatal("a CA file without a certificate is accepted")
	}
	path := writeKubeconfig(t, "one")
	certificate := selfSigned(t)
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "ca.crt"), certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := openExisting(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if e.rest.Host != "https://one.example" || e.raw.CurrentContext != "one" || len(e.raw.Clusters) != 1 {
		t.Errorf("it uses %s of %d clusters, want that of the current context only", e.rest.Host, len(e.raw.Clusters))
	}
	e.ownPermissions = true
	driver := filepath.Join(t.TempDir(), "driver.kubeconfig")
	if err := e.driverKubeconfig(t.Context(), driver); err != nil {
		t.Fatal(err)
	}
	copied, err := openExisting(driver, "")
	if err != nil {
		t.Fatal(err)
	}
	if copied.rest.ServerName != "api.one.example" || !bytes.Equal(copied.rest.CAData, certificate) || copied.rest.BearerToken != "secret" {
		t.Errorf("the driver's kubeconfig lacks settings of the user's: %+v", copied.rest.TLSClientConfig)
	}
}

// selfSigned returns a certificate in PEM.
func selfSigned(t *testing.T) []byte {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		q     question
		input string
		want  string // in the error; empty: consent
		asked bool
	}{
		{"y", question{terminal: true}, "y\n", "", true},
		{"YES", question{terminal: true}, " YES \n", "", true},
		{"n", question{terminal: true}, "n\n", "created nothing", true},
		{"another answer", question{terminal: true}, "yesterday\n", "created nothing", true},
		{"only Enter", question{terminal: true}, "\n", "created nothing", true},
		{"end of input", question{terminal: true}, "", "created nothing", true},
		{"no terminal", question{}, "y\n", "YES=1", false},
		{"no terminal, YES=1", question{yes: true}, "", "", false},
		{"terminal, YES=1", question{terminal: true, yes: true}, "n\n", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			tt.q.in, tt.q.out = strings.NewReader(tt.input), &out
			err := tt.q.confirm(t.Context(), "Create this?")
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("confirm: %v, want %q", err, tt.want)
			}
			if asked := strings.Contains(out.String(), "Create this? [y/N]"); asked != tt.asked {
				t.Errorf("asked: %t, want %t:\n%s", asked, tt.asked, out.String())
			}
		})
	}
}

func TestConfirmCanceled(t *testing.T) {
	t.Parallel()
	in, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (question{terminal: true, in: in, out: io.Discard}).confirm(ctx, "?"); !errors.Is(err, context.Canceled) {
		t.Errorf("confirm: %v, want context canceled", err)
	}
}

// apiServer serves discovery of a cluster whose LeaderWorkerSet CRD has this status, or that has no such CRD if it is "".
func apiServer(t *testing.T, status string) *existing {
	t.Helper()
	const group = "/apis/leaderworkerset.x-k8s.io/v1"
	schema := fmt.Sprintf(`{"components":{"schemas":{
		"io.x-k8s.leaderworkerset.v1.LeaderWorkerSet":{"properties":{"status":%s},"x-kubernetes-group-version-kind":[{"kind":"LeaderWorkerSet"}]},
		"io.x-k8s.leaderworkerset.v1.LeaderWorkerSetList":{"properties":{},"x-kubernetes-group-version-kind":[{"kind":"LeaderWorkerSetList"}]}}}}`, status)
	answers := map[string]string{
		"/version":            `{"gitVersion":"v1.36.3"}`,
		group:                 `{"kind":"APIResourceList","groupVersion":"leaderworkerset.x-k8s.io/v1","resources":[{"name":"leaderworkersets","kind":"LeaderWorkerSet"}]}`,
		"/openapi/v3":         `{"paths":{"apis/leaderworkerset.x-k8s.io/v1":{"serverRelativeURL":"/openapi/v3` + group + `"}}}`,
		"/openapi/v3" + group: schema,
	}
	if status == "" {
		delete(answers, group)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" {
			answer, ok = `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`, true
		}
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	e := &existing{rest: &rest.Config{Host: server.URL}, namespace: "lockstep-demo-test"}
	var err error
	if e.core, err = kubernetes.NewForConfig(e.rest); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, status string
		want         string // in the error; empty: the demo can run
	}{
		{"v0.9.0", `{"properties":{"conditions":{},"observedGeneration":{"type":"integer"}}}`, ""},
		{"v0.8.0", `{"properties":{"conditions":{}}}`, "older than v0.9.0"},
		{"no LeaderWorkerSet", "", "install LWS v0.9.0 or later"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			version, err := apiServer(t, tt.status).check(t.Context())
			if tt.want == "" && (err != nil || version != "v1.36.3") {
				t.Errorf("check: %q, %v", version, err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("check: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCheckWithoutAPIServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	e := &existing{rest: &rest.Config{Host: server.URL}}
	if _, err := e.check(t.Context()); err == nil || !strings.Contains(err.Error(), server.URL+" does not answer") {
		t.Errorf("check: %v, want an error about the API server", err)
	}
}

// allowing is an API server with these permissions.
func allowing(allowed func(*authorizationv1.ResourceAttributes) bool) *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
		review := action.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		review.Status.Allowed = allowed(review.Spec.ResourceAttributes)
		return true, review, nil
	})
	return client
}

func TestCheckPermissions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		allowed func(*authorizationv1.ResourceAttributes) bool
		own     bool
		want    []string // in the error; empty: the demo can run
	}{
		{"everything", func(*authorizationv1.ResourceAttributes) bool { return true }, false, nil},
		{"no roles", func(a *authorizationv1.ResourceAttributes) bool { return a.Resource != "roles" }, true, nil},
		{"no tokens", func(a *authorizationv1.ResourceAttributes) bool { return a.Subresource != "token" }, true, nil},
		{"no namespaces", func(a *authorizationv1.ResourceAttributes) bool { return a.Resource != "namespaces" || a.Verb == "get" }, false,
			[]string{"create namespaces", "delete namespaces"}},
		{"no roles, and fewer permissions than the driver needs",
			func(a *authorizationv1.ResourceAttributes) bool { return a.Resource != "roles" && a.Verb != "watch" }, false,
			[]string{"watch leaderworkersets.leaderworkerset.x-k8s.io", "watch pods", "watch controllerrevisions.apps"}},
		{"in another namespace only", func(a *authorizationv1.ResourceAttributes) bool { return a.Namespace != "lockstep-demo-test" }, false,
			[]string{"create leaderworkersets.leaderworkerset.x-k8s.io", "list pods"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			own, err := checkPermissions(t.Context(), allowing(tt.allowed).AuthorizationV1(), "lockstep-demo-test")
			if own != tt.own || (err != nil) != (len(tt.want) > 0) {
				t.Fatalf("checkPermissions: own permissions %t, %v; want %t", own, err, tt.own)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
		})
	}
}

// The account in the demo's namespace has exactly the rules of config/base.
func TestCreateAccess(t *testing.T) {
	t.Parallel()
	e := &existing{core: fake.NewClientset(), namespace: "lockstep-demo-test"}
	if err := e.createAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	rules, err := driverRules()
	if err != nil {
		t.Fatal(err)
	}
	role, err := e.core.RbacV1().Roles(e.namespace).Get(t.Context(), accessName, metav1.GetOptions{})
	if err != nil || len(role.Rules) != len(rules) || len(rules) == 0 {
		t.Errorf("the Role has %d rules, want %d: %v", len(role.Rules), len(rules), err)
	}
	for _, action := range e.core.(*fake.Clientset).Actions() {
		if action.GetVerb() == "create" && action.GetNamespace() != e.namespace {
			t.Errorf("it creates %s outside the demo's namespace", action.GetResource().Resource)
		}
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	c, err := parse([]string{"-kubeconfig", "f"})
	if err != nil {
		t.Fatal(err)
	}
	e := &existing{raw: &clientcmdapi.Config{CurrentContext: "staging"}, rest: &rest.Config{Host: "https://k8s.example"}, namespace: "lockstep-demo-abcde"}
	describe := func() string {
		var out bytes.Buffer
		e.describe(&out, "v1.36.3", c)
		return out.String()
	}
	text := describe()
	for _, want := range []string{
		"staging", "https://k8s.example", "v1.36.3", "Namespace lockstep-demo-abcde", "4 groups of 2 pods, at most 16 pods", c.image, c.newImage, "no GPUs",
		"ServiceAccount, Role and RoleBinding lockstep-driver",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the description lacks %q:\n%s", want, text)
		}
	}
	e.ownPermissions, c.style = true, "partition"
	if text = describe(); !strings.Contains(text, "your own permissions") || strings.Contains(text, "Role ") || !strings.Contains(text, "at most 8 pods") {
		t.Errorf("own permissions, in place:\n%s", text)
	}
}

// The pods run on any node, and under the restricted Pod Security Standard.
func TestExistingWorkload(t *testing.T) {
	t.Parallel()
	client := lwsfake.NewSimpleClientset()
	e := &existing{sets: client, namespace: "ns"}
	if err := e.createWorkload(t.Context(), "image:1"); err != nil {
		t.Fatal(err)
	}
	w, err := client.LeaderworkersetV1().LeaderWorkerSets("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	template := w.Spec.LeaderWorkerTemplate
	for role, spec := range map[string]corev1.PodSpec{"leader": template.LeaderTemplate.Spec, "worker": template.WorkerTemplate.Spec} {
		c := spec.Containers[0]
		if c.Image != "image:1" || len(c.Resources.Limits) != 2 || c.Resources.Limits.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("the %s runs %s with %v, want the given image with limits for CPU and memory only", role, c.Image, c.Resources.Limits)
		}
		if !*spec.SecurityContext.RunAsNonRoot || *c.SecurityContext.AllowPrivilegeEscalation || c.SecurityContext.Capabilities.Drop[0] != "ALL" {
			t.Errorf("the %s is not restricted", role)
		}
	}
	if text, err := yaml.Marshal(w); err != nil || strings.Contains(string(text), "test.lockstep.dev") {
		t.Errorf("the workload has annotations of the test cluster: %v\n%s", err, text)
	}
}

func demoNamespace(run string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lockstep-demo-test", UID: "u1", Labels: map[string]string{runLabel: run}}}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		namespace *corev1.Namespace
		attempted bool
		deleted   bool
	}{
		{"nothing was created", nil, true, false},
		{"the demo's namespace", demoNamespace("this"), true, true},
		{"a namespace of another run", demoNamespace("that"), true, false},
		{"a namespace before the demo asked for one", demoNamespace("this"), false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			core := fake.NewClientset()
			if tt.namespace != nil {
				core = fake.NewClientset(tt.namespace)
			}
			e := &existing{
				core: core, sets: lwsfake.NewSimpleClientset(), rest: &rest.Config{}, raw: &clientcmdapi.Config{},
				namespace: "lockstep-demo-test", run: "this", attempted: tt.attempted,
			}
			stopped := false
			if err := e.remove(t.Context(), io.Discard, func() { stopped = true }); err != nil || !stopped {
				t.Fatalf("remove: %v, driver stopped: %t", err, stopped)
			}
			deleted := false
			for _, action := range core.Actions() {
				if d, ok := action.(k8stesting.DeleteAction); ok {
					deleted = true
					if uid := d.GetDeleteOptions().Preconditions.UID; uid == nil || *uid != "u1" {
						t.Errorf("it deletes %s without its UID", d.GetName())
					}
				}
			}
			if deleted != tt.deleted {
				t.Errorf("deleted: %t, want %t", deleted, tt.deleted)
			}
		})
	}
}

func TestRemoveReportsBlockedDeletion(t *testing.T) {
	t.Parallel()
	namespace := demoNamespace("this")
	namespace.DeletionTimestamp = &metav1.Time{}
	namespace.Finalizers = []string{"example.com/hold"}
	namespace.Status.Conditions = []corev1.NamespaceCondition{
		{Type: "NamespaceFinalizersRemaining", Status: corev1.ConditionTrue, Message: "example.com/hold in 1 resource instances"},
		{Type: "NamespaceDeletionContentFailure", Status: corev1.ConditionFalse, Message: "all content deleted"},
	}
	client := fake.NewClientset()
	client.PrependReactor("get", "namespaces", func(k8stesting.Action) (bool, runtime.Object, error) { return true, namespace, nil })
	e := &existing{
		core: client, sets: lwsfake.NewSimpleClientset(), rest: &rest.Config{Host: "https://k8s.example"}, raw: &clientcmdapi.Config{CurrentContext: "c"},
		kubeconfig: "f", namespace: namespace.Name, run: "this", attempted: true,
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*removePeriod)
	defer cancel()
	err := e.remove(ctx, io.Discard, func() {})
	if err == nil {
		t.Fatal("a namespace that stays is no error")
	}
	for _, want := range []string{"lockstep-demo-test", "https://k8s.example", "example.com/hold in 1 resource", "kubectl --kubeconfig f --context c"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "all content deleted") {
		t.Errorf("the error has a condition that is false: %v", err)
	}
}

// Without a driver the demo removes Lockstep's finalizer, and no other one.
func TestRemoveFinalizer(t *testing.T) {
	t.Parallel()
	w := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{
		Name: "vllm-abcdef", Namespace: "ns", UID: "u2", ResourceVersion: "7", Finalizers: []string{"example.com/hold", record.Finalizer},
	}}
	client := lwsfake.NewSimpleClientset()
	var sent struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	client.PrependReactor("patch", "leaderworkersets", func(action k8stesting.Action) (bool, runtime.Object, error) {
		return true, w, json.Unmarshal(action.(k8stesting.PatchAction).GetPatch(), &sent)
	})
	if err := (&existing{sets: client}).removeFinalizer(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	got := sent.Metadata
	if len(got.Finalizers) != 1 || got.Finalizers[0] != "example.com/hold" || got.UID != "u2" || got.ResourceVersion != "7" {
		t.Errorf("the patch is %+v, want the other finalizer, with UID and version", got)
	}
}
