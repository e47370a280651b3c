// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"io"
	"maps"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Option is an option of [Start].
type Option func(*options)

type options struct {
	nodes      int
	kubelets   int
	resources  corev1.ResourceList
	log        io.Writer
	dir        string
	audit      bool
	lws        bool
	gateway    bool
	traefik    bool
	picker     bool
	installers bool
	prometheus bool
	// traefikArgs follow this package's own, and override them.
	traefikArgs []string
	versions    Versions
	argo        bool
	// argoPrepare is called before the first start of Argo's controller.
	argoPrepare []func(context.Context, *Cluster) error
	kruise      bool
	// kruisePrepare is called before the first start of Kruise's manager.
	kruisePrepare []func(context.Context, *Cluster) error
	keepDir       bool
	prebuilt      prebuilt
	manifests     []func() ([]byte, error)
}

func newOptions(opts []Option) (options, error) {
	o := options{nodes: 8, resources: defaultResources(), log: os.Stderr, lws: true}
	for _, opt := range opts {
		opt(&o)
	}
	o.log = &lockedWriter{w: o.log}
	var err error
	o.versions, err = o.versions.Resolve()
	return o, err
}

// lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func defaultResources() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("512Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
		"nvidia.com/gpu":      resource.MustParse("8"),
	}
}

// WithNodes sets the number of nodes and their resources. The defaults are 8 nodes with 64 CPUs, 512 GiB, 110 pods and 8
// nvidia.com/gpu each.
func WithNodes(n int, each corev1.ResourceList) Option {
	return func(o *options) {
		o.nodes = n
		maps.Copy(o.resources, each)
	}
}

// WithLog logs progress to w instead of standard error. The output of programs is in files.
func WithLog(w io.Writer) Option { return func(o *options) { o.log = w } }

// WithDir uses dir, which must be empty or absent, instead of a temporary directory. Stop keeps it.
func WithDir(dir string) Option {
	return func(o *options) {
		o.dir = dir
		o.keepDir = true
	}
}

// WithAudit makes the API server log every request as a JSON line (level Metadata); see [Cluster.AuditLog].
func WithAudit() Option { return func(o *options) { o.audit = true } }

// WithoutLWS starts a cluster without LeaderWorkerSet. [Cluster.InstallLWS] installs it later.
func WithoutLWS() Option { return func(o *options) { o.lws = false } }

// WithGatewayAPI installs the CRDs of the Gateway API (standard channel) and InferencePool without a controller.
func WithGatewayAPI() Option { return func(o *options) { o.gateway = true } }

// WithTraefik installs the Gateway API and starts Traefik as its controller, with one Gateway ([GatewayName] in
// [GatewayNamespace]) that accepts routes from every namespace and listens on [Cluster.GatewayAddress]. The arguments are Traefik's
// own flags, and override this package's.
//
// Requests reach pods only in a network namespace where [PodCIDR] is local: see package netns.
func WithTraefik(args ...string) Option {
	return func(o *options) {
		o.gateway, o.traefik = true, true
		o.traefikArgs = append(o.traefikArgs, args...)
	}
}

// WithArgo installs Argo Rollouts as its own cluster-wide installation does, and starts its unmodified controller with a token of its
// service account, so with the permissions of the published ClusterRole. Before it starts, prepare may add plugins to
// [ArgoConfigMap], and the permissions that they need.
func WithArgo(prepare ...func(context.Context, *Cluster) error) Option {
	return func(o *options) {
		o.argo = true
		o.argoPrepare = append(o.argoPrepare, prepare...)
	}
}

// WithKruise installs Kruise Rollouts as its own kustomization does, and starts its unmodified manager with its webhooks, a token of
// its service account and --filter-workload-type=false, so that it accepts any kind with the fields of a StatefulSet. Before it
// starts, prepare may add kinds and the permissions for them.
func WithKruise(prepare ...func(context.Context, *Cluster) error) Option {
	return func(o *options) {
		o.kruise = true
		o.kruisePrepare = append(o.kruisePrepare, prepare...)
	}
}

// WithManifest applies cluster-scoped objects of package deploy, such as policies, before any component starts but the API server.
func WithManifest(manifest func() ([]byte, error)) Option {
	return func(o *options) { o.manifests = append(o.manifests, manifest) }
}

// WithVersions chooses the versions of programs. Empty fields are chosen by the environment (LOCKSTEP_TEST_KUBERNETES,
// LOCKSTEP_TEST_LWS, LOCKSTEP_TEST_ARGO, LOCKSTEP_TEST_KRUISE, LOCKSTEP_TEST_GATEWAY_API), or have the default.
func WithVersions(v Versions) Option { return func(o *options) { o.versions = v } }
