// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host is what the hosts with controllers share around their reconcilers: the manager that runs those for Kruise, the
// check that the cluster serves the kinds they need, and the source that watches workloads through the driver.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var errUnprotectedMetrics = errors.New("a metrics address that is not loopback needs authentication")

// Settings configure a host.
type Settings struct {
	// Driver is required.
	Driver Driver
	// Logger is required.
	Logger *slog.Logger
	// Namespace restricts the host to one namespace. Empty means all.
	Namespace string
	// LeaderElection makes one of several processes work: the one that holds a Lease in LeaderElectionNamespace (empty: the
	// pod's own).
	LeaderElection          bool
	LeaderElectionNamespace string
	// MetricsAddress and HealthAddress are host:port. Empty means not served. Metrics beyond loopback are served with TLS, to users
	// who may get the path /metrics.
	MetricsAddress, HealthAddress string
	// ProtectMetrics wraps a handler in authentication and authorization. Required unless MetricsAddress is empty or loopback.
	ProtectMetrics func(http.Handler) (http.Handler, error)
}

// New returns the manager of a host. lease names the Lease of the leader; only restricts the caches of some kinds.
func New(
	cluster *rest.Config, s Settings, lease string, scheme *runtime.Scheme, only map[client.Object]cache.ByObject,
) (manager.Manager, error) {
	logger := logr.FromSlogHandler(s.Logger.Handler())
	// controller-runtime has one logger in a process, and complains if none is set.
	log.SetLogger(logger)
	metrics, err := metricsOptions(s)
	if err != nil {
		return nil, err
	}
	options := manager.Options{
		Scheme:                  scheme,
		Logger:                  logger,
		Cache:                   cache.Options{ByObject: only},
		Client:                  client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		Metrics:                 metrics,
		HealthProbeBindAddress:  cmp.Or(s.HealthAddress, off),
		Controller:              config.Controller{SkipNameValidation: new(true)}, // a test runs a host repeatedly
		LeaderElection:          s.LeaderElection,
		LeaderElectionID:        lease,
		LeaderElectionNamespace: s.LeaderElectionNamespace,
		// Another replica then need not wait until the Lease expires.
		LeaderElectionReleaseOnCancel: true,
	}
	if s.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{s.Namespace: {}}
	}
	m, err := manager.New(cluster, options)
	if err != nil {
		return nil, fmt.Errorf("make the controller's manager: %w", err)
	}
	if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add health check: %w", err)
	}
	return m, nil
}

// Run runs a manager until ctx ends. It fills the caches of kinds, which are all that the controllers watch, and only then campaigns
// for the Lease: a leader without them would keep the other replicas from acting. Until then the process is not ready.
func Run(ctx context.Context, m manager.Manager, kinds ...client.Object) error {
	for _, kind := range kinds {
		if err := addCache(ctx, m, kind); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- m.Start(ctx)
		stop()
	}()
	if !m.GetCache().WaitForCacheSync(ctx) {
		select {
		case err := <-ended:
			return runError(err)
		default:
			return nil // Start does not return while it waits for caches
		}
	}
	return runError(<-ended)
}

func runError(err error) error {
	if err != nil {
		return fmt.Errorf("run the controller: %w", err)
	}
	return nil
}

// addCache adds the cache of a kind to those that the manager fills before it campaigns, and a readiness check that is named after the
// kind.
func addCache(ctx context.Context, m manager.Manager, kind client.Object) error {
	gvk, err := m.GetClient().GroupVersionKindFor(kind)
	if err != nil {
		return fmt.Errorf("find the kind of %T: %w", kind, err)
	}
	informer, err := m.GetCache().GetInformer(ctx, kind)
	if err != nil {
		return fmt.Errorf("make the cache of %s: %w", gvk.Kind, err)
	}
	filled := func(*http.Request) error {
		if !informer.HasSynced() {
			return fmt.Errorf("the cache of %s is not filled", gvk.Kind)
		}
		return nil
	}
	if err := m.AddReadyzCheck("cache-of-"+gvk.Kind, filled); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return nil
}

// Metadata returns an object that stands for the metadata of a kind.
func Metadata(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	return o
}

// off is the address at which controller-runtime serves nothing.
const off = "0"

// metricsOptions returns how to serve metrics: plain on loopback, otherwise with TLS, authentication and authorization.
func metricsOptions(s Settings) (metricsserver.Options, error) {
	options := metricsserver.Options{BindAddress: cmp.Or(s.MetricsAddress, off)}
	if e, err := endpoint.Parse(s.MetricsAddress); err != nil || e.Local() {
		return options, nil //nolint:nilerr // the manager judges the address
	}
	if s.ProtectMetrics == nil {
		return options, errUnprotectedMetrics
	}
	options.SecureServing = true
	options.FilterProvider = func(*rest.Config, *http.Client) (metricsserver.Filter, error) {
		return func(_ logr.Logger, handler http.Handler) (http.Handler, error) { return s.ProtectMetrics(handler) }, nil
	}
	return options, nil
}

// maxNote is the API server's limit for the note of an event, in bytes.
const maxNote = 1024

// Note shortens a message to what the API server accepts as the note of an event.
func Note(message string) string {
	if len(message) > maxNote {
		return strings.ToValidUTF8(message[:maxNote], "")
	}
	return message
}

// The kinds of the workloads.
var (
	LeaderWorkerSet  = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: plugin.KindLeaderWorkerSet}
	DisaggregatedSet = schema.GroupVersionKind{Group: "disaggregatedset.x-k8s.io", Version: "v1", Kind: plugin.KindDisaggregatedSet}
)

// KeyOf returns the namespace of a workload of a kind, and its name as plugin.NameOf returns it.
func KeyOf(kind schema.GroupVersionKind, o metav1.Object) client.ObjectKey {
	return client.ObjectKey{Namespace: o.GetNamespace(), Name: plugin.NameOf(&pb.WorkloadRef{Kind: kind.Kind, Name: o.GetName()})}
}

// API is a kind that a host needs.
type API struct {
	Kind schema.GroupVersionKind
	// Fix is what to do if it is missing.
	Fix string
}

// workloads returns watches of the metadata of workloads, of the kinds that the cluster serves. It returns an error if the cluster does not
// serve the controller's kind, or LeaderWorkerSets.
func (c Controller) workloads(config *rest.Config) ([]Watch, error) {
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	var watches []Watch
	var missing []error
	for _, api := range []API{
		c.API, {LeaderWorkerSet, "LeaderWorkerSet is not installed: install LWS v0.9.0 or later"}, {Kind: DisaggregatedSet},
	} {
		serves, err := served(d, api.Kind)
		switch {
		case err != nil:
			return nil, err
		case !serves && api.Fix != "":
			// A kind without a fix is optional.
			missing = append(missing, fmt.Errorf("the cluster does not serve %s of %s: %s", api.Kind.Kind, api.Kind.GroupVersion(), api.Fix))
		case serves && api.Kind != c.API.Kind:
			watches = append(watches, Watch{
				Object: Metadata(api.Kind), Workload: func(o client.Object) client.ObjectKey { return KeyOf(api.Kind, o) },
			})
		}
	}
	return watches, errors.Join(missing...)
}

// served reports whether the cluster serves a kind.
func served(d discovery.ServerResourcesInterface, kind schema.GroupVersionKind) (bool, error) {
	list, err := d.ServerResourcesForGroupVersion(kind.GroupVersion().String())
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("discover %s: %w", kind.GroupVersion(), err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind.Kind }), nil
}
