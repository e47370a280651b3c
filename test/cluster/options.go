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

// Option changes how [Start] sets a cluster up.
type Option func(*options)

type options struct {
	nodes     int
	resources corev1.ResourceList
	log       io.Writer
	dir       string
	audit     bool
	lws       bool
	gateway   bool
	traefik   bool
	// traefikArgs come after our own, so that they win.
	traefikArgs []string
	versions    Versions
	argo        bool
	// argoPrepare is called before Argo's controller starts for the first time.
	argoPrepare []func(context.Context, *Cluster) error
	kruise      bool
	// kruisePrepare is called before Kruise's manager starts for the first time.
	kruisePrepare []func(context.Context, *Cluster) error
	keepDir       bool
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

// lockedWriter lets components that start side by side share a writer.
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

// WithNodes sets how many nodes there are and what each of them offers. Resources that are not named keep their default:
// 64 CPUs, 512 GiB, 110 pods and 8 nvidia.com/gpu. The default is 8 nodes.
func WithNodes(n int, each corev1.ResourceList) Option {
	return func(o *options) {
		o.nodes = n
		maps.Copy(o.resources, each)
	}
}

// WithLog sends progress, one line per step, to w instead of standard error. The programs' own output goes to files.
func WithLog(w io.Writer) Option { return func(o *options) { o.log = w } }

// WithDir keeps the cluster's files in dir, which must not exist or be empty, instead of a new temporary folder. Stop
// leaves the folder in place.
func WithDir(dir string) Option {
	return func(o *options) {
		o.dir = dir
		o.keepDir = true
	}
}

// WithAudit makes the API server log every request as one JSON line (level Metadata); see [Cluster.AuditLog].
func WithAudit() Option { return func(o *options) { o.audit = true } }

// WithoutLWS starts a cluster that does not know LeaderWorkerSet. [Cluster.InstallLWS] adds it later.
func WithoutLWS() Option { return func(o *options) { o.lws = false } }

// WithGatewayAPI installs the CRDs of the Gateway API (standard channel) and InferencePool, and nothing that serves them.
func WithGatewayAPI() Option { return func(o *options) { o.gateway = true } }

// WithTraefik installs the Gateway API and starts Traefik as its controller, with one Gateway ([GatewayName] in
// [GatewayNamespace]) that takes routes from every namespace and listens on [Cluster.GatewayAddress]. Further arguments are
// Traefik's own flags, and win over ours.
//
// Requests reach pods only in a process that runs in a network namespace of its own where [PodCIDR] is local: see package netns.
func WithTraefik(args ...string) Option {
	return func(o *options) {
		o.gateway, o.traefik = true, true
		o.traefikArgs = append(o.traefikArgs, args...)
	}
}

// WithArgo installs Argo Rollouts as its own cluster-wide installation does and starts its controller, unmodified, with a
// token of its service account: it may do what its published ClusterRole says and no more. Before it starts,
// prepare may add to that: plugins in [ArgoConfigMap], and the rights that they need.
func WithArgo(prepare ...func(context.Context, *Cluster) error) Option {
	return func(o *options) {
		o.argo = true
		o.argoPrepare = append(o.argoPrepare, prepare...)
	}
}

// WithKruise installs Kruise Rollouts as its own kustomization does, and starts its manager, unmodified and with its webhooks,
// with a token of its service account and with --filter-workload-type=false, so that it takes any kind that looks like a
// StatefulSet. Before it starts, prepare may add kinds and the rights to them.
func WithKruise(prepare ...func(context.Context, *Cluster) error) Option {
	return func(o *options) {
		o.kruise = true
		o.kruisePrepare = append(o.kruisePrepare, prepare...)
	}
}

// WithVersions chooses the versions of programs. What it leaves empty is chosen by the environment (LOCKSTEP_TEST_KUBERNETES,
// LOCKSTEP_TEST_LWS, LOCKSTEP_TEST_ARGO, LOCKSTEP_TEST_KRUISE, LOCKSTEP_TEST_GATEWAY_API) or is the default.
func WithVersions(v Versions) Option { return func(o *options) { o.versions = v } }
