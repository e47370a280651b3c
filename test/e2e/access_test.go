// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/child"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// tcpDriver is a driver that serves all namespaces over TCP with TLS, and authorizes its callers.
type tcpDriver struct {
	*env

	ca      *tlstest.CA
	address string
	log     string
}

// serveTCP starts one with the permissions of config/base.
func (e *env) serveTCP(args ...string) *tcpDriver {
	e.t.Helper()
	require.NoError(e.t, e.cluster.ApplyConfig(e.t.Context(), "", deploy.Access))
	binary := driver.Path(e.t)
	s := &tcpDriver{env: e, ca: tlstest.NewCA(e.t), log: filepath.Join(e.t.TempDir(), "log")}
	cert := s.ca.Files(e.t, "server")
	log, err := os.Create(s.log)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = log.Close() })
	cmd := exec.Command(binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--kubeconfig", driver.Kubeconfig(e.t, e.cluster),
		"--tls-cert", cert.Cert, "--tls-key", cert.Key, "--client-ca", s.ca.File}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	process, err := child.Run(cmd)
	require.NoError(e.t, err)
	e.t.Cleanup(func() {
		process.End(syscall.SIGTERM, await.Patience)
		if e.t.Failed() {
			e.t.Logf("log of the driver:\n%s", s.logged())
		}
	})
	serving := regexp.MustCompile(`msg=serving address=(\S+)`)
	e.eventually("the driver serves", func(context.Context) error {
		found := serving.FindStringSubmatch(s.logged())
		if found == nil {
			return errNotYet
		}
		s.address = found[1]
		return nil
	})
	return s
}

func (s *tcpDriver) logged() string {
	raw := files.Read(s.t, s.log)
	return string(raw)
}

// token returns a file with a token of a service account of the namespace for an audience.
func (s *tcpDriver) token(account, audience string) string {
	s.t.Helper()
	accounts := s.kube.CoreV1().ServiceAccounts(s.namespace)
	_, _ = accounts.Create(s.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	request, err := accounts.CreateToken(s.t.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	path := filepath.Join(s.t.TempDir(), "token")
	files.Write(s.t, path, []byte(request.Status.Token))
	return path
}

// bind binds a shipped role to a user in a namespace.
func (s *tcpDriver) bind(namespace, role string, subject rbacv1.Subject) string {
	s.t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: role + "-"}, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
	return suite.Create(s.t, s.kube.RbacV1().RoleBindings(namespace), binding).Name
}

func (s *tcpDriver) account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: name}
}

// as returns a client with credentials, without the call of Dial that reads the driver's info.
func (s *tcpDriver) as(o plugin.DialOptions) (*plugin.Client, error) {
	o.ConnectTimeout = await.Patience
	client, err := plugin.Dial(s.t.Context(), s.address, o)
	if err == nil {
		s.t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func (s *tcpDriver) mustAs(o plugin.DialOptions) *plugin.Client {
	s.t.Helper()
	client, err := s.as(o)
	require.NoError(s.t, err)
	return client
}

func (s *tcpDriver) bearer(account string) *plugin.Client {
	s.t.Helper()
	return s.mustAs(plugin.DialOptions{CA: s.ca.File, TokenFile: s.token(account, "lockstep")})
}

// grpcurl runs examples/grpcurl as a service account.
func (s *tcpDriver) grpcurl(account, workload string) (string, error) {
	s.t.Helper()
	token := files.Read(s.t, s.token(account, "lockstep"))
	cmd := exec.Command("../../examples/grpcurl/release.sh", s.address, s.namespace, workload)
	cmd.Env = append(os.Environ(), "CACERT="+s.ca.File, "TOKEN="+string(token))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// certified returns a client with a certificate.
func (s *tcpDriver) certified(user string, groups ...string) (*plugin.Client, error) {
	s.t.Helper()
	pair, err := s.ca.Issue(user, groups...)
	require.NoError(s.t, err)
	files, err := pair.Write(s.t.TempDir(), "client")
	require.NoError(s.t, err)
	return s.as(plugin.DialOptions{Cert: files.Cert, Key: files.Key, CA: s.ca.File})
}

// A caller over TCP is a bearer of a token or has a certificate, and may do what RBAC grants on releases.lockstep.dev in the
// workload's namespace, and nothing else.
//
// Proves (test): Access: callers over TCP, who began and ended a release, marks.
func TestAccess(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	w := e.deploy(model("model", 2, 1))
	w.awaitReady()
	s := e.serveTCP("--reflection")
	s.bind(e.namespace, "lockstep-viewer", s.account("viewer"))
	s.bind(e.namespace, "lockstep-operator", s.account("operator"))
	s.bind(e.namespace, "lockstep-operator", rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "release-managers"})
	s.bind("default", "lockstep-operator", s.account("elsewhere"))
	adopt := func(c *plugin.Client) error {
		_, err := c.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
		return err
	}
	look := func(c *plugin.Client) error {
		_, err := c.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: w.ref()})
		return err
	}

	viewer, elsewhere := s.bearer("viewer"), s.bearer("elsewhere")
	await.Nil(t, "the driver is synced", func(context.Context) error { return look(viewer) })
	mustFail(t, adopt(viewer), pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
		fmt.Sprintf("system:serviceaccount:%s:viewer", e.namespace), "may not adopt releases.lockstep.dev in namespace "+e.namespace)
	mustFail(t, look(elsewhere), pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "may not get", "lockstep-viewer")
	mustFail(t, adopt(elsewhere), pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED)
	assert.NoError(t, adopt(s.bearer("operator")), "an operator")
	out, err := s.grpcurl("operator", "model")
	assert.True(t, err == nil && strings.Contains(out, "NOTHING_TO_RELEASE"), "examples/grpcurl: %v\n%s", err, out)
	manager, err := s.certified("ada", "release-managers")
	require.NoError(t, err)
	assert.NoError(t, look(manager), "a certificate whose organization is bound")
	stranger, err := s.certified("eve")
	require.NoError(t, err)
	mustFail(t, look(stranger), pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, `"eve"`)

	for name, try := range map[string]func() (*plugin.Client, error){
		"no credentials":        func() (*plugin.Client, error) { return s.as(plugin.DialOptions{CA: s.ca.File}) },
		"a group of Kubernetes": func() (*plugin.Client, error) { return s.certified("eve", "system:masters") },
		"a user of Kubernetes":  func() (*plugin.Client, error) { return s.certified("system:admin") },
		"a token for the cluster": func() (*plugin.Client, error) {
			return s.as(plugin.DialOptions{CA: s.ca.File, TokenFile: s.token("operator", "https://kubernetes.default.svc")})
		},
	} {
		_, err := try()
		assert.Equal(t, pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED, plugin.Reason(err), "%s: %v, want UNAUTHENTICATED", name, err)
	}
	_, err = s.as(plugin.DialOptions{TokenFile: s.token("operator", "lockstep")})
	assert.Error(t, err, "a token was sent in plaintext")
}

// The history, the context, events and the audit log say who began a release, and who promoted it.
//
// Proves (test): Access: callers over TCP, who began and ended a release, marks.
func TestAccessAudit(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	w := e.deploy(model("model", 2, 1))
	w.awaitReady()
	s := e.serveTCP()
	s.bind(e.namespace, "lockstep-operator", s.account("beginner"))
	s.bind(e.namespace, "lockstep-operator", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "ada"})
	s.bind(e.namespace, "lockstep-viewer", s.account("viewer"))
	ada, err := s.certified("ada")
	require.NoError(t, err)
	w = w.withDriver(&driver.Driver{Client: s.bearer("beginner")})
	await.Nil(t, "the workload is adopted", func(ctx context.Context) error {
		_, err := w.driver.Adopt(ctx, &pb.AdoptRequest{Workload: w.ref()})
		return err
	})
	w.edit(image("v2"))
	w.initialize("r2", quarters())
	end := &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: "r2", Intent: promote}
	_, err = s.bearer("viewer").Finalize(t.Context(), end)
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "may not drive")
	_, err = ada.Finalize(t.Context(), end)
	require.NoError(t, err)
	beginner := fmt.Sprintf("system:serviceaccount:%s:beginner", e.namespace)
	if c := w.awaitState(pb.State_STATE_COMPLETED); c.GetStartedBy() != beginner || c.GetEndedBy() != "ada" {
		t.Errorf("the context says begun by %q and ended by %q", c.GetStartedBy(), c.GetEndedBy())
	}
	history, err := ada.ListRevisions(t.Context(), &pb.ListRevisionsRequest{Workload: w.ref(), Limit: 1})
	require.NoError(t, err)
	if r := history.GetRevisions()[0]; r.GetStartedBy() != beginner || r.GetEndedBy() != "ada" {
		t.Errorf("the history says begun by %q and ended by %q", r.GetStartedBy(), r.GetEndedBy())
	}
	e.eventually("an event names who promoted", func(ctx context.Context) error {
		events, err := e.events(ctx, "model")
		for _, event := range events {
			if event.Reason == "ReleaseCompleted" && strings.Contains(event.Note, "requested by ada") {
				return nil
			}
		}
		return errors.Join(errNotYet, err)
	})
	log := s.logged()
	for _, want := range []string{
		`msg=audit user=` + beginner + ` method=/lockstep.v1alpha1.WorkloadDriver/Adopt workload=` + e.namespace + `/model release="" code=OK`,
		`msg=audit user=` + beginner + ` method=/lockstep.v1alpha1.WorkloadDriver/Initialize workload=` + e.namespace + `/model release=r2 code=OK`,
		`msg=audit user=ada method=/lockstep.v1alpha1.WorkloadDriver/Finalize workload=` + e.namespace + `/model release=r2 code=OK`,
	} {
		assert.Contains(t, log, want, "the log has no line with %s", want)
	}
	assert.NotContains(t, log, "eyJ", "the log has a token")
}

// A watch of all namespaces shows a caller's own only. A permission that is revoked ends within the time that answers are cached.
//
// Proves: Watches show what the caller may see, until it is revoked; no plaintext by default.
func TestAccessWatch(t *testing.T) {
	t.Parallel()
	mine, other := newEnvIn(t, cluster.Shared(t)), newEnvIn(t, cluster.Shared(t))
	for _, e := range []*env{mine, other} {
		e.driver = driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
		e.adopt(model("model", 1, 1))
	}
	s := mine.serveTCP()
	binding := s.bind(mine.namespace, "lockstep-viewer", s.account("viewer"))
	viewer := s.bearer("viewer")
	seen := func() map[string]bool {
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		namespaces := map[string]bool{}
		for m, err := range viewer.WatchWorkloads(ctx, &pb.WatchWorkloadsRequest{}) {
			if err != nil || m.GetSynced() {
				break
			}
			namespaces[m.GetContext().GetWorkload().GetNamespace()] = true
		}
		return namespaces
	}
	mine.eventually("the viewer sees the workload", func(context.Context) error {
		if all := seen(); !all[mine.namespace] {
			return fmt.Errorf("%w: %v", errNotYet, all)
		}
		return nil
	})
	all := seen()
	assert.Len(t, all, 1, "the viewer sees workloads in %v, want only %s", all, mine.namespace)
	var err error
	for _, err = range viewer.WatchWorkloads(t.Context(), &pb.WatchWorkloadsRequest{Namespace: other.namespace}) {
		break
	}
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, other.namespace)

	ended := make(chan error, 1)
	go func() {
		var err error
		for _, err = range viewer.WatchBatchContext(t.Context(), &pb.WatchBatchContextRequest{
			Workload: &pb.WorkloadRef{Namespace: mine.namespace, Name: "model"},
		}) {
		}
		ended <- err
	}()
	suite.Delete(t, mine.kube.RbacV1().RoleBindings(mine.namespace), binding)
	revoked := time.Now()
	mine.eventually("the permission has ended", func(context.Context) error {
		if all := seen(); len(all) > 0 {
			return fmt.Errorf("%w: sees %v", errNotYet, all)
		}
		return nil
	})
	t.Logf("revoked permission ended after %v", time.Since(revoked).Round(time.Second))
	mine.existing("model").scale(2) // the next message of the watch that is open
	select {
	case err := <-ended:
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, mine.namespace)
	case <-time.After(await.Patience):
		t.Error("a watch continues without permission")
	}
}

// Metrics beyond loopback are for users who may get their path, with a token of the API server.
//
// Proves: Watches show what the caller may see, until it is revoked; no plaintext by default.
func TestAccessMetrics(t *testing.T) {
	t.Parallel()
	s := newEnvIn(t, cluster.Shared(t)).serveTCP("--metrics-address", "0.0.0.0:0")
	port := regexp.MustCompile(`metrics=\S+:(\d+)`).FindStringSubmatch(s.logged())[1]
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	get := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:"+port+"/metrics", nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		require.NoError(t, err)
		_ = response.Body.Close()
		return response.StatusCode
	}
	raw := files.Read(t, s.token("scraper", "https://kubernetes.default.svc"))
	for token, want := range map[string]int{"": http.StatusUnauthorized, "random": http.StatusUnauthorized, string(raw): http.StatusForbidden} {
		assert.Equal(t, want, get(token), "code")
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-metrics"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta, Subjects: []rbacv1.Subject{s.account("scraper")},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	}
	_, err := s.kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if err == nil {
		_, err = s.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	}
	require.NoError(t, err)
	s.eventually("the account may read the metrics", func(context.Context) error {
		if code := get(string(raw)); code != http.StatusOK {
			return fmt.Errorf("%w: code %d", errNotYet, code)
		}
		return nil
	})
}

// Without credentials that can be checked, no TCP address is served; plaintext is for loopback and only when asked for.
//
// Proves: Watches show what the caller may see, until it is revoked; no plaintext by default.
func TestAccessPlaintext(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	binary := driver.Path(t)
	for _, address := range []string{"127.0.0.1:0", ":0"} {
		out, err := exec.Command(binary, "serve", "--listen", address, "--kubeconfig", driver.Kubeconfig(t, e.cluster)).CombinedOutput()
		assert.True(t, err != nil && bytes.Contains(out, []byte("--tls-cert")), "serve --listen %s: %v\n%s", address, err, out)
	}
}
