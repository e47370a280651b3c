// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lockstep-rollouts/lockstep/test/await"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// demoEnv makes the test binary run the demo.
const demoEnv = "LOCKSTEP_TEST_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(demoEnv) != "" {
		main()
	}
	code := cluster.Main(m)
	driver.Cleanup()
	os.Exit(code)
}

// demo is a process of the demo, in its own process group, as when make runs it on a terminal.
type demo struct {
	*exec.Cmd
	// lines has its output, and is closed when it exits.
	lines chan string
	// tmp is its temporary directory.
	tmp string
}

func startDemo(t *testing.T, args ...string) *demo {
	t.Helper()
	lockstep, err := driver.Binary()
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{lines: make(chan string, 1000)}
	if d.tmp, err = os.MkdirTemp("", "demo-"); err != nil { // short, for the path of a socket
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d.tmp) })
	d.Cmd = exec.Command(os.Args[0], append([]string{"-lockstep", lockstep}, args...)...)
	// The cluster of the environment, which does not exist, must not be used.
	d.Env = append(os.Environ(), demoEnv+"=1", "TMPDIR="+d.tmp, "KUBECONFIG="+filepath.Join(t.TempDir(), "none"))
	d.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := d.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.Stderr = d.Stdout
	if err := child.Start(d.Cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(d.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			d.lines <- s.Text()
		}
	}()
	return d
}

// until returns the output up to a line with text, or all of it if text is empty.
func (d *demo) until(t *testing.T, text string) string {
	t.Helper()
	var b strings.Builder
	for line := range d.lines {
		t.Log(line)
		b.WriteString(line + "\n")
		if text != "" && strings.Contains(line, text) {
			return b.String()
		}
	}
	if text != "" {
		t.Fatalf("the demo exited without %q", text)
	}
	return b.String()
}

// inventory lists namespaces and the cluster-scoped objects that the demo might have created.
func inventory(t *testing.T, core kubernetes.Interface) []string {
	t.Helper()
	all, err := listInventory(t.Context(), core)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func listInventory(ctx context.Context, core kubernetes.Interface) ([]string, error) {
	var all []string
	namespaces, err := core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	roles, err1 := core.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	bindings, err2 := core.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err := errors.Join(err, err1, err2); err != nil {
		return nil, err
	}
	for _, o := range namespaces.Items {
		all = append(all, "Namespace "+o.Name)
	}
	for _, o := range roles.Items {
		all = append(all, "ClusterRole "+o.Name)
	}
	for _, o := range bindings.Items {
		all = append(all, "ClusterRoleBinding "+o.Name)
	}
	slices.Sort(all)
	return all, nil
}

// mustBeClean fails unless the inventory is as before the demo, no pod is left, and the temporary directory is empty.
func (d *demo) mustBeClean(t *testing.T, core kubernetes.Interface, before []string) {
	t.Helper()
	await.Nil(t, "nothing of the demo is left", func(ctx context.Context) error {
		after, err := listInventory(ctx, core)
		if err != nil {
			return err
		}
		if !slices.Equal(before, after) {
			return fmt.Errorf("the cluster has %q, before the demo it had %q", after, before)
		}
		pods, err := core.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "app=vllm"})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
	if left, err := os.ReadDir(d.tmp); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

func coreOf(t *testing.T, c *cluster.Cluster) kubernetes.Interface {
	t.Helper()
	core, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return core
}

func TestDemoOnAnExistingCluster(t *testing.T) {
	c := cluster.Shared(t)
	core := coreOf(t, c)
	before := inventory(t, core)
	d := startDemo(t, "-kubeconfig", c.Kubeconfig(), "-yes", "-pause", "1s")
	text := d.until(t, "")
	if err := d.Wait(); err != nil {
		t.Fatalf("demo: %v", err)
	}
	for _, want := range []string{"server      " + c.RESTConfig().Host, "no GPUs", "is complete: 4 groups run revision", "registry.k8s.io/pause:3.10.1 ready", "deleted, with everything in it"} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if strings.Contains(text, "warning: delete") || strings.Contains(text, "driver: level") {
		t.Error("the demo prints warnings")
	}
	d.mustBeClean(t, core, before)
}

func TestDemoInterrupted(t *testing.T) {
	tests := []struct {
		name   string
		signal func(pid int) error
	}{
		{"Ctrl-C, which reaches the whole process group", func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) }},
		{"SIGINT to the demo alone", func(pid int) error { return syscall.Kill(pid, syscall.SIGINT) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := cluster.Shared(t)
			core := coreOf(t, c)
			before := inventory(t, core)
			d := startDemo(t, "-kubeconfig", c.Kubeconfig(), "-yes", "-pause", "1h")
			d.until(t, "pausing 1h0m0s before batch 2/3")
			if err := tt.signal(d.Process.Pid); err != nil {
				t.Fatal(err)
			}
			text := d.until(t, "")
			if err := d.Wait(); err != nil {
				t.Errorf("demo: %v", err)
			}
			if !strings.Contains(text, "deleted, with everything in it") || strings.Contains(text, "warning: delete") {
				t.Error("the demo does not say that it deleted everything")
			}
			d.mustBeClean(t, core, before)
		})
	}
}

func TestDemoWithUsersOwnPermissions(t *testing.T) {
	c := cluster.Shared(t)
	core := coreOf(t, c)
	rules, err := driverRules()
	if err != nil {
		t.Fatal(err)
	}
	rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"create", "get", "delete"}})
	roles := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts", "serviceaccounts/token"}, Verbs: []string{"create"}},
		{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles", "rolebindings"}, Verbs: []string{"create"}},
	}
	tests := []struct {
		name, user string
		rules      []rbacv1.PolicyRule
		want       string
	}{
		{"may create no roles", "demo-without-roles", rules, "you may not create roles in the cluster"},
		{"may create roles, but lacks a permission of the driver", "demo-without-autoscalers",
			append(slices.DeleteFunc(slices.Clone(rules), func(r rbacv1.PolicyRule) bool { return r.APIGroups[0] == "keda.sh" }), roles...),
			"the driver uses your own permissions: create Role"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			grant(t, core, tt.user, tt.rules)
			before := inventory(t, core)
			d := startDemo(t, "-kubeconfig", impersonate(t, c.Kubeconfig(), tt.user), "-yes", "-style", "partition", "-pause", "0s")
			text := d.until(t, "")
			if err := d.Wait(); err != nil {
				t.Errorf("demo: %v", err)
			}
			for _, want := range []string{tt.want, "at most 8 pods", "is complete: 4 groups run revision", "deleted, with everything in it"} {
				if !strings.Contains(text, want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			d.mustBeClean(t, core, before)
		})
	}
}

// grant gives a user cluster-wide permissions until the test ends.
func grant(t *testing.T, core kubernetes.Interface, user string, rules []rbacv1.PolicyRule) {
	t.Helper()
	named, rbac := metav1.ObjectMeta{Name: user}, core.RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rbac.ClusterRoles().Delete(context.Background(), user, metav1.DeleteOptions{}) })
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: named,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err = rbac.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rbac.ClusterRoleBindings().Delete(context.Background(), user, metav1.DeleteOptions{}) })
}

// impersonate returns a copy of an administrator's kubeconfig that impersonates user.
func impersonate(t *testing.T, kubeconfig, user string) string {
	t.Helper()
	raw, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range raw.AuthInfos {
		a.Impersonate = user
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*raw, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDemoRequiresConsent(t *testing.T) {
	c := cluster.Shared(t)
	core := coreOf(t, c)
	before := inventory(t, core)
	d := startDemo(t, "-kubeconfig", c.Kubeconfig())
	text := d.until(t, "")
	if err := d.Wait(); err == nil {
		t.Error("the demo succeeded without consent")
	}
	if !strings.Contains(text, "Namespace lockstep-demo-") || !strings.Contains(text, "YES=1") {
		t.Error("the demo does not say what it would create, and how to consent")
	}
	d.mustBeClean(t, core, before)
}

func TestDemoRequiresLWS(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.WithoutLWS(), cluster.WithLog(t.Output()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	d := startDemo(t, "-kubeconfig", c.Kubeconfig(), "-yes")
	if text := d.until(t, "install LWS v0.9.0"); strings.Contains(text, "The demo creates") {
		t.Error("the demo would create something")
	}
	d.until(t, "")
	if err := d.Wait(); err == nil {
		t.Error("the demo succeeded without LWS")
	}
}
