// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

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

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// shared is the cluster of a test binary.
var shared struct {
	once    sync.Once
	ctx     context.Context
	options []Option
	cluster *Cluster
	err     error
}

// Main runs the tests of a package that share a cluster, and returns the exit code. The first call of [Shared] starts the cluster. It
// is stopped at the end, also by Ctrl-C; its directory is kept if a test failed.
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
	// Wait for a test that is starting the cluster, and keep others from starting it.
	shared.once.Do(func() { shared.err = ErrStopped })
	if shared.cluster == nil {
		return
	}
	if failed {
		shared.cluster.KeepDir()
	}
	shared.cluster.Stop()
}

// Shared returns the cluster of this test binary, which the first call starts. The test fails if the cluster does not start, or if a
// component has died since. TestMain must call [Main].
func Shared(tb testing.TB) *Cluster {
	tb.Helper()
	require.True(tb, shared.ctx != nil, "cluster.Shared needs a TestMain that calls cluster.Main")
	shared.once.Do(func() { shared.cluster, shared.err = Start(shared.ctx, shared.options...) })
	require.NoError(tb, shared.err)
	require.NoError(tb, shared.cluster.Err())
	return shared.cluster
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// Namespace creates a namespace named after the test and returns its name. It is deleted, without waiting, when the test and its
// subtests are done, unless the test failed.
func (c *Cluster) Namespace(tb testing.TB) string {
	tb.Helper()
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(tb.Name()), "-"), "-")
	prefix := name[:min(len(name), 40)] + "-"
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}
	created, err := c.kube.CoreV1().Namespaces().Create(tb.Context(), namespace, metav1.CreateOptions{})
	require.NoError(tb, err, "create namespace")
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

// deleteNamespace deletes a namespace, and before that the workloads that own pods: otherwise their controllers, which all tests
// share, would try to recreate pods in the terminating namespace.
func (c *Cluster) deleteNamespace(ctx context.Context, name string) error {
	for _, resource := range []schema.GroupVersionResource{
		setResource, lwsResource, appsv1.SchemeGroupVersion.WithResource("statefulsets"), appsv1.SchemeGroupVersion.WithResource("deployments"),
	} {
		err := c.applier.client.Resource(resource).Namespace(name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) { // held children are deleted after their set
			return fmt.Errorf("delete its %s: %w", resource.Resource, err)
		}
	}
	return c.kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
}
