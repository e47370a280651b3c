// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
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

// Versions are the versions of programs that tests may choose. An empty field means the default.
type Versions struct {
	Kubernetes, LWS, Argo, Kruise, GatewayAPI string
}

// selectable is a component whose version tests may choose.
type selectable struct {
	compatibility.Component
	// env is the environment variable with the version.
	env   string
	field func(*Versions) *string
}

var selectables = []selectable{
	{compatibility.Kubernetes, "LOCKSTEP_TEST_KUBERNETES", func(v *Versions) *string { return &v.Kubernetes }},
	{compatibility.LWS, "LOCKSTEP_TEST_LWS", func(v *Versions) *string { return &v.LWS }},
	{compatibility.ArgoRollouts, "LOCKSTEP_TEST_ARGO", func(v *Versions) *string { return &v.Argo }},
	{compatibility.KruiseRollouts, "LOCKSTEP_TEST_KRUISE", func(v *Versions) *string { return &v.Kruise }},
	{compatibility.GatewayAPI, "LOCKSTEP_TEST_GATEWAY_API", func(v *Versions) *string { return &v.GatewayAPI }},
}

// Resolve fills empty fields from the environment or with the default, and completes a version like "1.35". It returns an error for a
// version without a module.
func (v Versions) Resolve() (Versions, error) {
	for _, s := range selectables {
		field := s.field(&v)
		wanted := *field
		if wanted == "" {
			wanted = os.Getenv(s.env)
		}
		found, err := s.find(wanted)
		if err != nil {
			return v, err
		}
		*field = found
	}
	return v, nil
}

// Environment returns the environment variables of the versions that are chosen.
func (v Versions) Environment() []string {
	var env []string
	for _, s := range selectables {
		if version := *s.field(&v); version != "" {
			env = append(env, s.env+"="+version)
		}
	}
	return env
}

// String returns the versions that are chosen, e.g. "Kubernetes v1.35, Gateway API v1.5".
func (v Versions) String() string {
	var chosen []string
	for _, s := range selectables {
		if version := *s.field(&v); version != "" {
			chosen = append(chosen, s.Name+" "+version)
		}
	}
	return strings.Join(chosen, ", ")
}

// find returns the version that equals wanted or starts with it and a dot, or the default for "".
func (s selectable) find(wanted string) (string, error) {
	if wanted == "" {
		return s.Default(), nil
	}
	prefix := "v" + strings.TrimPrefix(wanted, "v")
	i := slices.IndexFunc(s.Versions, func(known string) bool { return known == prefix || strings.HasPrefix(known, prefix+".") })
	if i < 0 {
		return "", fmt.Errorf("unknown version: %s %s: test/cluster/modules has %s (%s chooses one)", s.Name, wanted, strings.Join(s.Versions, ", "), s.env)
	}
	return s.Versions[i], nil
}

// minor returns the second number of a version: 36 of "v1.36.3".
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return parts[1]
}
