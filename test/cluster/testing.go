package cluster

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// shared is the one cluster of a test binary.
var shared struct {
	once    sync.Once
	ctx     context.Context
	options []Option
	cluster *Cluster
	err     error
}

// Main runs the tests of a package that share one cluster and returns the exit code. The cluster starts when the first test
// asks for it with [Shared] and is stopped at the end, also on Ctrl-C; its folder is kept if a test failed.
func Main(m *testing.M, opts ...Option) int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	shared.ctx, shared.options = ctx, opts
	interrupted := context.AfterFunc(ctx, func() {
		stopShared(false)
		os.Exit(130)
	})
	code := m.Run()
	interrupted()
	stopShared(code != 0)
	return code
}

func stopShared(failed bool) {
	// Holds back a test that has not started the cluster yet, and waits for one that does.
	shared.once.Do(func() { shared.err = ErrStopped })
	if shared.cluster == nil {
		return
	}
	if failed {
		shared.cluster.KeepDir()
	}
	shared.cluster.Stop()
}

// Shared returns the cluster of this test binary, starting it for the first caller. The test fails at once if it does not
// start, or if one of its components has died since. TestMain must have called [Main].
func Shared(tb testing.TB) *Cluster {
	tb.Helper()
	if shared.ctx == nil {
		tb.Fatal("cluster.Shared needs a TestMain that calls cluster.Main")
	}
	shared.once.Do(func() { shared.cluster, shared.err = Start(shared.ctx, shared.options...) })
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	if err := shared.cluster.Err(); err != nil {
		tb.Fatal(err)
	}
	return shared.cluster
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// Namespace creates a namespace named after the test and returns its name. It is deleted, without waiting, when the test
// and its subtests are done; a test that failed leaves it to be looked at in a cluster that is still up.
func (c *Cluster) Namespace(tb testing.TB) string {
	tb.Helper()
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(tb.Name()), "-"), "-")
	prefix := name[:min(len(name), 40)] + "-"
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}
	created, err := c.kube.CoreV1().Namespaces().Create(tb.Context(), namespace, metav1.CreateOptions{})
	if err != nil {
		tb.Fatalf("create namespace: %v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			return
		}
		if err := c.deleteNamespace(context.Background(), created.Name); err != nil {
			tb.Logf("delete namespace %s: %v", created.Name, err)
		}
	})
	return created.Name
}

// deleteNamespace has a namespace deleted, and first what makes pods: until it is gone it would make them again, be refused, and
// keep its controller, which serves all tests, from other work.
func (c *Cluster) deleteNamespace(ctx context.Context, name string) error {
	for _, resource := range []schema.GroupVersionResource{lwsResource, appsv1.SchemeGroupVersion.WithResource("statefulsets")} {
		err := c.applier.client.Resource(resource).Namespace(name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete its %s: %w", resource.Resource, err)
		}
	}
	return c.kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
}
