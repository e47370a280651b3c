// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Preflight returns findings about the workload and the objects around it. It writes nothing, so a read-only driver serves it
// too.
func (d *Driver) Preflight(ctx context.Context, req *pb.PreflightRequest) (*pb.PreflightResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := checkPreflight(req, d.options.Limits); err != nil {
		return nil, err
	}
	if err := d.awaitNearby(ctx, key); err != nil {
		return nil, err
	}
	s, err := d.engine.Observe(key, req.GetPolicy())
	if err != nil {
		return nil, err
	}
	snapshot := d.inventoryOf(s, req.GetPolicy())
	e := req.GetExpectations()
	snapshot.Expect = preflight.Expectations{
		LongestRequest: e.GetLongestRequest().AsDuration(), EndpointPropagation: e.GetEndpointPropagation().AsDuration(),
		HeaderRoutes: e.GetHeaderRoutes(),
	}
	if snapshot.Expect.LongestRequest == 0 {
		snapshot.Unseen[preflight.LongestRequests] = preflight.LongestRequestUnknown
	}
	d.readNearby(s, snapshot)
	d.readAround(ctx, s, snapshot, req.GetSkipNodes())
	if err := takeTurn(ctx, key); err != nil {
		return nil, err
	}
	return preflight.Check(snapshot), nil
}

func checkPreflight(req *pb.PreflightRequest, limits record.Limits) error {
	e := req.GetExpectations()
	bad := append(checkDuration("expectations.longest_request", e.GetLongestRequest()),
		checkDuration("expectations.endpoint_propagation", e.GetEndpointPropagation())...)
	if req.GetPolicy() == nil {
		return drivererr.Invalid(bad...)
	}
	return checkPolicy(req.GetPolicy(), limits, bad...)
}

// preflightOf returns what the caches hold, for a release or, without a policy, the workload's own rolling update.
func preflightOf(s *observe.Snapshot, p *pb.ReleasePolicy) *preflight.Inventory {
	// Under hold the user's own configuration is in the record, and not in the spec.
	out := &preflight.Inventory{Workload: s.StableObject, Rolling: plan.NewRecord(s.Observation).Saved, Force: p.GetBlueGreen().GetForce(), Unsafe: s.UnsafeChanges, Unseen: map[preflight.Source]string{}}
	if p != nil {
		out.Policy, _ = record.ParsePolicy(p)
	}
	if s.Set != nil {
		out.Roles, out.Slices = s.RolesToBe(), s.Slices
	}
	if now := s.StableRevisions(); len(now) > 0 {
		out.Revision = now[0]
	}
	out.Autoscalers = slices.DeleteFunc(slices.Clone(s.Autoscalers), func(a plan.Autoscaler) bool { return !a.Targets })
	if s.Unscanned != nil {
		out.Unseen[preflight.Autoscalers] = s.Unscanned.Message
	}
	return out
}

// inventoryOf returns what the caches hold about a release, and the template of the groups.
func (d *Driver) inventoryOf(s *observe.Snapshot, p *pb.ReleasePolicy) *preflight.Inventory {
	out := preflightOf(s, p)
	t, err := d.engine.Observer.Caches.Template(s.StableObject, plan.WaitingRevision(s.Stable, nil))
	if s.Set == nil && err == nil {
		out.Old = &t.LeaderWorkerTemplate
	}
	return out
}

// sourceTimeout bounds each request to the API server that a preflight waits for.
const sourceTimeout = 5 * time.Second

// nearby returns what Plan and Initialize run preflight on, and why what of it could not be read: the workload, and the Services, budgets and
// quotas of its namespace. The planner judges autoscalers, SetHeaderRoute judges routes, and nodes would be a list of the whole cluster.
func (d *Driver) nearby(s *observe.Snapshot, p *pb.ReleasePolicy) (*preflight.Inventory, map[preflight.Source]error) {
	inventory := d.inventoryOf(s, p)
	for _, source := range []preflight.Source{
		preflight.Autoscalers, preflight.LongestRequests, preflight.Routes, preflight.Claims, preflight.Nodes,
	} {
		inventory.Unseen[source] = "judged elsewhere"
	}
	return inventory, d.readNearby(s, inventory)
}

// readNearby reads the caches of what is nearby, and returns why what of it could not be read.
func (d *Driver) readNearby(s *observe.Snapshot, into *preflight.Inventory) map[preflight.Source]error {
	near, unread := d.engine.Observer.Nearby, map[preflight.Source]error{}
	into.Services, unread[preflight.Services] = near.Services(s.Key.Namespace)
	into.Budgets, unread[preflight.Budgets] = near.Budgets(s.Key.Namespace)
	into.Quotas, unread[preflight.Quotas] = near.Quotas(s.Key.Namespace)
	into.NoteUnread(unread)
	return unread
}

// readAround reads routes, claims from the API server, once per call, and nodes once for all calls of half a minute.
func (d *Driver) readAround(ctx context.Context, s *observe.Snapshot, into *preflight.Inventory, skipNodes bool) {
	unread := map[preflight.Source]error{
		preflight.Routes: d.readRoutes(ctx, s, into), preflight.Claims: d.readClaims(ctx, s, into), preflight.Nodes: errors.New("not requested"),
	}
	if !skipNodes {
		unread[preflight.Nodes] = d.readNodes(ctx, into)
	}
	into.NoteUnread(unread)
}

// readRoutes reads the policy's routes, and pools if it names one, from the caches, and waits for these. A missing route is not a finding: Initialize refuses it.
func (d *Driver) readRoutes(ctx context.Context, s *observe.Snapshot, into *preflight.Inventory) error {
	if into.Policy.Traffic == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	setup := s.SetupFor(into.Policy)
	// It waits for the caches of these routes. Initialize reports what it refuses.
	_ = d.engine.Observer.Router.Check(ctx, setup)
	seen := d.engine.Observer.Router.Snapshot(setup)
	if seen.Unread != nil {
		return errors.New(seen.Unread.Message)
	}
	for _, key := range setup.Policy.Routes {
		if o := seen.World.Routes[key]; o != nil {
			into.Routes = append(into.Routes, traffic.Route{Key: key, Object: o})
		}
	}
	if setup.Policy.Pool != nil {
		into.Pools = d.engine.Observer.Router.Pools(s.Key.Namespace)
	}
	return nil
}

// readClaims gets the claims that the templates name. A missing claim is not a finding: its pods report it.
func (d *Driver) readClaims(ctx context.Context, s *observe.Snapshot, into *preflight.Inventory) error {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	for _, name := range preflight.ClaimNames(into) {
		c, err := d.core.CoreV1().PersistentVolumeClaims(s.Key.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return withRemedy(fmt.Errorf("get persistentvolumeclaim %s/%s: %w", s.Key.Namespace, name, err))
		}
		if err == nil {
			into.Claims = append(into.Claims, c)
		}
	}
	return nil
}

// readNodes reads what the nodes have free.
func (d *Driver) readNodes(ctx context.Context, into *preflight.Inventory) (err error) {
	if n := into.Need().Pods(); n > maxPlacedPods {
		return fmt.Errorf("%d pods are added, and at most %d are placed on nodes", n, maxPlacedPods)
	}
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	into.Free, err = d.free.read(ctx, d.core)
	return err
}

// withRemedy adds what to do about a missing permission beyond those of releases.
func withRemedy(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w (config/preflight grants the permission)", err)
	}
	return err
}

const (
	// nodesPeriod is how long the free capacity of the nodes may be old. Pods start and end all the time, so it is an estimate anyway.
	nodesPeriod = 30 * time.Second
	// nodesTimeout bounds the lists of all nodes and pods.
	nodesTimeout = 30 * time.Second
	// maxPlacedPods bounds the pods that a preflight places on nodes, one by one: a spec may have any number of them.
	maxPlacedPods = 5000
	// nodesPage is how many objects the driver holds of them at a time.
	nodesPage = 500
)

// freeCapacity reads the free capacity of the cluster's nodes for all callers together: it costs lists of all nodes and pods.
type freeCapacity struct {
	reading singleflight.Group

	mu     sync.Mutex
	free   capacity.Free
	readAt time.Time
}

// read returns the free capacity, waiting for it until ctx ends.
func (r *freeCapacity) read(ctx context.Context, core kubernetes.Interface) (capacity.Free, error) {
	r.mu.Lock()
	free, fresh := r.free, time.Since(r.readAt) <= nodesPeriod
	r.mu.Unlock()
	if fresh {
		return free, nil
	}
	// The lists serve all callers, so they neither end with the first one's call nor wait for its user's turns.
	shared := access.WithUser(context.WithoutCancel(ctx), nil)
	read := r.reading.DoChan("", func() (any, error) { return r.list(shared, core) })
	select {
	case result := <-read:
		free, _ := result.Val.(capacity.Free)
		return free, result.Err
	case <-ctx.Done():
		return capacity.Free{}, fmt.Errorf("read nodes and pods: %w", ctx.Err())
	}
}

func (r *freeCapacity) list(ctx context.Context, core kubernetes.Interface) (capacity.Free, error) {
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	var free capacity.Free
	if err := listPages(ctx, "nodes", "", free.AddNode, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return core.CoreV1().Nodes().List(ctx, o)
	}); err != nil {
		return free, err
	}
	// Only pods on a node that have not ended use its resources.
	placed := fmt.Sprintf("spec.nodeName!=,status.phase!=%s,status.phase!=%s", corev1.PodSucceeded, corev1.PodFailed)
	if err := listPages(ctx, "pods of all namespaces", placed, free.AddPod, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return core.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
	}); err != nil {
		return free, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free, r.readAt = free, time.Now()
	return free, nil
}

// listPages lists objects page by page.
func listPages[T runtime.Object](ctx context.Context, what, fields string, do func(T), list pager.ListPageFunc) error {
	p := pager.New(list)
	p.PageSize, p.PageBufferSize = nodesPage, 1
	err := p.EachListItem(ctx, metav1.ListOptions{FieldSelector: fields}, func(o runtime.Object) error {
		if t, ok := o.(T); ok {
			do(t)
		}
		return nil
	})
	if err != nil {
		return withRemedy(fmt.Errorf("list %s: %w", what, err))
	}
	return nil
}
