// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hostile

import (
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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate"
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

// world is a driver that serves all namespaces over TCP and authorizes its callers, and the namespace of a release.
type world struct {
	t         *testing.T
	cluster   *cluster.Cluster
	namespace string
	kube      kubernetes.Interface
	lws       lwsclient.Interface
	ca        *tlstest.CA

	process         *child.Process
	log             string
	address, health string
	// accepted counts the calls of the attack that were not refused.
	accepted atomic.Int64
}

var errNotYet = errors.New("not yet")

// newWorld starts a driver with the permissions of config/base, and the settings and the memory of config/deployment.
func newWorld(t *testing.T) *world {
	t.Helper()
	c := cluster.Shared(t)
	w := &world{t: t, cluster: c, namespace: c.Namespace(t), ca: tlstest.NewCA(t), log: filepath.Join(t.TempDir(), "log")}
	w.kube, w.lws, _ = suite.Clients(c)
	require.NoError(t, c.ApplyConfig(t.Context(), "", deploy.Access))
	w.start()
	return w
}

func (w *world) start() {
	w.t.Helper()
	binary := driver.Path(w.t)
	log, err := os.Create(w.log)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = log.Close() })
	cert := w.ca.Files(w.t, "server")
	cmd := exec.Command(binary, "serve", "--listen", "127.0.0.1:0", "--health-address", "127.0.0.1:0",
		"--kubeconfig", driver.Kubeconfig(w.t, w.cluster), "--tls-cert", cert.Cert, "--tls-key", cert.Key)
	cmd.Env = append(os.Environ(), goMemoryLimit)
	cmd.Stdout, cmd.Stderr = log, log
	w.process, err = child.Run(cmd)
	require.NoError(w.t, err)
	confine(w.t, w.process)
	w.t.Cleanup(func() { w.process.End(syscall.SIGTERM, await.Patience) })
	serving := regexp.MustCompile(`msg=serving address=(\S+) metrics="" health=(\S+)`)
	await.Nil(w.t, "the driver is ready", func(ctx context.Context) error {
		raw, err := os.ReadFile(w.log)
		if err != nil {
			return err
		}
		found := serving.FindStringSubmatch(string(raw))
		if found == nil {
			return errNotYet
		}
		w.address, w.health = found[1], "http://"+found[2]
		return w.probe(ctx, "/readyz")
	})
}

// probe requests a path as a kubelet does, over a connection of its own.
func (w *world) probe(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.health+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// token returns a token of a service account of the release's namespace.
func (w *world) token(account string) string {
	w.t.Helper()
	return w.tokenIn(w.namespace, account)
}

// tokenIn returns a token of a service account for calls to the driver.
func (w *world) tokenIn(namespace, account string) string {
	w.t.Helper()
	accounts := w.kube.CoreV1().ServiceAccounts(namespace)
	_, _ = accounts.Create(w.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	request, err := accounts.CreateToken(w.t.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{review.Audience}},
	}, metav1.CreateOptions{})
	require.NoError(w.t, err)
	return request.Status.Token
}

// bind grants a shipped role in all namespaces to a service account of a namespace.
func (w *world) bind(role, namespace, account string) {
	w.t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
	suite.Create(w.t, w.kube.RbacV1().ClusterRoleBindings(), binding)
}

// administrator returns how to connect as an account that may do everything in all namespaces.
func (w *world) administrator() (connect func(context.Context) (*plugin.Client, error)) {
	w.t.Helper()
	// The driver counts the service accounts of a namespace as one, and this one is no attacker's.
	w.bind("lockstep-operator", metav1.NamespaceDefault, "administrator")
	path := filepath.Join(w.t.TempDir(), "token")
	files.Write(w.t, path, []byte(w.tokenIn(metav1.NamespaceDefault, "administrator")))
	return func(ctx context.Context) (*plugin.Client, error) {
		return plugin.Dial(ctx, w.address, plugin.DialOptions{CA: w.ca.File, TokenFile: path})
	}
}

// insecure is for attackers, who trust every server.
func insecure() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
}

// The workloads of other tenants: their groups do not exist, for which a quota cares.
const (
	fleetSize     = 50
	fleetReplicas = 5000
)

// fleet adopts many workloads with many groups in another namespace, unless an earlier attack has.
func (w *world) fleet() {
	w.t.Helper()
	const namespace = "fleet"
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	_, err := w.kube.CoreV1().Namespaces().Create(w.t.Context(), object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return
	}
	require.NoError(w.t, err)
	suite.Apply(w.t, w.cluster, namespace, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: none}, spec: {hard: {pods: "0"}}}`)
	client, err := w.administrator()(w.t.Context())
	require.NoError(w.t, err)
	defer client.Close()
	for i := range fleetSize {
		name := fmt.Sprintf("model-%d", i)
		suite.Apply(w.t, w.cluster, namespace, suite.Workload(name, fleetReplicas, nil))
		await.Nil(w.t, name+" is adopted", func(ctx context.Context) error {
			_, err := client.Adopt(ctx, &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: namespace, Name: name}})
			return err
		})
	}
}

// The pods of other tenants, 64 MiB of them.
const (
	crowdSize = 2000
	crowdPod  = 32 << 10
)

// crowd lets the driver list the pods of all namespaces, and creates many large ones.
func (w *world) crowd() {
	w.t.Helper()
	require.NoError(w.t, w.cluster.ApplyConfig(w.t.Context(), config.Namespace, deploy.Preflight))
	pods := w.kube.CoreV1().Pods(w.cluster.Namespace(w.t))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "crowd-"},
		Spec: corev1.PodSpec{
			NodeName: "elsewhere", TerminationGracePeriodSeconds: ptr.To[int64](0), // no kubelet ends it
			Containers: []corev1.Container{{Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "X", Value: strings.Repeat("x", crowdPod)}}}},
		},
	}
	var creating sync.WaitGroup
	for range 20 {
		creating.Go(func() {
			for range crowdSize / 20 {
				if _, err := pods.Create(w.t.Context(), pod, metav1.CreateOptions{}); err != nil {
					w.t.Error(err)
					return
				}
			}
		})
	}
	creating.Wait()
}

// planned returns a workload with as many replicas as a plan simulates, of which a quota allows two pods.
func (w *world) planned() *pb.WorkloadRef {
	w.t.Helper()
	ref := &pb.WorkloadRef{Namespace: w.cluster.Namespace(w.t), Name: "planned"}
	suite.Apply(w.t, w.cluster, ref.GetNamespace(), `{apiVersion: v1, kind: ResourceQuota, metadata: {name: few}, spec: {hard: {pods: "2"}}}`)
	suite.Apply(w.t, w.cluster, ref.GetNamespace(), suite.Workload(ref.GetName(), simulate.MaxGroups, nil))
	client, err := w.administrator()(w.t.Context())
	require.NoError(w.t, err)
	defer client.Close()
	await.Nil(w.t, "its plan is simulated", func(ctx context.Context) error {
		_, err := client.Plan(ctx, &pb.PlanRequest{Workload: ref, Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}})
		return err
	})
	return ref
}

// history gives a workload a long history of large templates.
func (w *world) history(ref *pb.WorkloadRef) {
	w.t.Helper()
	for i := range int64(10) {
		revision := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%d", ref.GetName(), i), Labels: map[string]string{record.RoleLabel: record.RoleSnapshot, record.StableLabel: ref.GetName()},
			},
			Revision: i, Data: runtime.RawExtension{Raw: []byte(`{"x":"` + strings.Repeat("x", 1<<20) + `"}`)},
		}
		suite.Create(w.t, w.kube.AppsV1().ControllerRevisions(ref.GetNamespace()), revision)
	}
}

func TestMain(m *testing.M) {
	code := suite.Main(m, 1)
	driver.Cleanup()
	os.Exit(code)
}
