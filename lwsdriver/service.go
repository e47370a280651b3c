// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/engine"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// Name is the driver's name, as GetDriverInfo returns it.
	Name = "lws.lockstep.dev"

	// maxWait bounds the long poll of mutating RPCs.
	maxWait = 10 * time.Minute
	// answerTime is left for a response to reach its caller.
	answerTime = 250 * time.Millisecond
	// maxRaces is how often an RPC retries after a conflict before it returns ABORTED.
	maxRaces = 5
	// raceTimeout bounds the wait for the cache to show a conflicting write, or what LWS makes of one.
	raceTimeout = 2 * time.Second
	// readTimeout bounds how long a call waits for caches that are being filled.
	readTimeout = 10 * time.Second
)

// GetDriverInfo returns the driver's name, version and capabilities.
func (d *Driver) GetDriverInfo(context.Context, *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	return &pb.GetDriverInfoResponse{
		Name: Name, Version: d.options.Version,
		Kinds: []*pb.WorkloadKind{
			{Group: lws.GroupVersion.Group, Version: lws.GroupVersion.Version, Kind: observe.Kind},
			{Group: disaggregated.GroupVersion.Group, Version: disaggregated.GroupVersion.Version, Kind: observe.KindSet},
		},
		Capabilities: []pb.Capability{
			pb.Capability_CAPABILITY_ADOPT,
			pb.Capability_CAPABILITY_RELEASE,
			pb.Capability_CAPABILITY_WATCH,
			pb.Capability_CAPABILITY_WAIT,
			pb.Capability_CAPABILITY_LIST_REVISIONS,
			pb.Capability_CAPABILITY_UNDO,
			pb.Capability_CAPABILITY_PLAN,
			pb.Capability_CAPABILITY_PREFLIGHT,
			pb.Capability_CAPABILITY_TRAFFIC_WEIGHT,
			pb.Capability_CAPABILITY_TRAFFIC_HEADER_ROUTE,
			pb.Capability_CAPABILITY_TRAFFIC_MIRROR,
			pb.Capability_CAPABILITY_WATCH_WORKLOADS,
		},
		Styles: []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION},
		TrafficProviders: []pb.TrafficProvider{
			pb.TrafficProvider_TRAFFIC_PROVIDER_GATEWAY_API,
			pb.TrafficProvider_TRAFFIC_PROVIDER_INFERENCE_POOL,
			pb.TrafficProvider_TRAFFIC_PROVIDER_INGRESS,
		},
	}, nil
}

// keyFor checks that calls can be served and returns the workload's key.
func (d *Driver) keyFor(ref *pb.WorkloadRef) (types.NamespacedName, error) {
	var bad []drivererr.FieldViolation
	if ref.GetNamespace() == "" {
		bad = fieldViolation("workload.namespace", "is required")
	}
	if ref.GetName() == "" {
		bad = append(bad, fieldViolation("workload.name", "is required")...)
	}
	if k := ref.GetKind(); k != "" && k != observe.Kind && k != observe.KindSet {
		bad = append(bad, fieldViolation("workload.kind", "is %q; this driver releases %s and %s", k, observe.Kind, observe.KindSet)...)
	}
	if strings.Contains(ref.GetName(), "/") {
		bad = append(bad, fieldViolation("workload.name", "%q is no name: its kind belongs in workload.kind", ref.GetName())...)
	}
	key := observe.KeyFor(ref.GetKind(), ref.GetNamespace(), ref.GetName())
	if err := drivererr.Invalid(bad...); err != nil {
		return key, err
	}
	if ns := d.options.Namespace; ns != "" && ns != key.Namespace {
		return key, drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND,
			"this driver serves namespace %q only, and %s is not in it", ns, key)
	}
	if err := d.engine.Ready(); err != nil {
		return key, err
	}
	if ref.GetKind() == observe.KindSet {
		// DisaggregatedSets may have been installed since the driver started.
		d.engine.Observer.Disaggregated.Start()
	}
	return d.engine.Observer.Caches.Resolve(key), nil
}

// accept checks that calls can be served and that a request has no violations, and returns the workload's key.
func (d *Driver) accept(ref *pb.WorkloadRef, bad ...[]drivererr.FieldViolation) (types.NamespacedName, error) {
	key, err := d.keyFor(ref)
	if err == nil {
		err = drivererr.Invalid(slices.Concat(bad...)...)
	}
	return key, err
}

// admission refuses a decided write for a reason that takes I/O to find. It may add warnings to the decision.
type admission func(context.Context, *observe.Snapshot, *plan.Decision) error

// mutation is the result of an intent.
type mutation struct {
	action pb.Action
	outcome
	// after is what the loop observed and decided last, once the intent was recorded. It is nil if the loop did not get as far.
	after *outcome
}

// outcome is a decision, and what it was made from.
type outcome struct {
	snapshot *observe.Snapshot
	decision plan.Decision
}

// mutateAndWait is mutate for a request that waits. It returns the context once the workload is settled, at the latest after the wait.
func (d *Driver) mutateAndWait(ctx context.Context, key types.NamespacedName, i plan.Intent, req interface {
	GetWait() *durationpb.Duration
	GetIncludeGroups() bool
}, admissions ...admission,
) (mutation, *pb.BatchContext, error) {
	m, err := d.mutate(ctx, key, i, admissions...)
	if err != nil {
		return m, nil, err
	}
	c, err := d.await(ctx, key, m, req.GetWait(), req.GetIncludeGroups())
	return m, c, err
}

// mutate carries out an intent under the workload's lock, retries conflicts, and then reconciles the release as far as it gets
// without waiting. A decided write passes the admissions first.
func (d *Driver) mutate(ctx context.Context, key types.NamespacedName, i plan.Intent, admissions ...admission) (mutation, error) {
	key, unlock, err := d.engine.Lock(ctx, key)
	if err != nil {
		return mutation{}, observe.ContractError(err)
	}
	defer unlock()
	m, err := d.retryRaces(ctx, key, i, admissions)
	if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS {
		// The loop's next writes may end that release, such as the one of its outcome.
		if _, _, errLoop := d.engine.Reconcile(ctx, key); errLoop == nil {
			m, err = d.retryRaces(ctx, key, i, admissions)
		}
	}
	d.audit(ctx, key, i, m, err)
	if err != nil {
		if m.decision.Action != nil {
			d.engine.Enqueue(key) // its decision counts groups that the failed write may not start
		}
		return mutation{}, err
	}
	// The intent is recorded. If a write that follows from it fails, the queue retries it and the context reports the error.
	s, decision, err := d.engine.Reconcile(ctx, key)
	// This pass is not one of the queue, whose timers and retries continue it.
	if err != nil || decision.Recheck > 0 {
		d.engine.Enqueue(key)
	}
	// A pass that stopped early, to let others in, has not settled the workload.
	if err == nil && decision.Action == nil && !s.Gone {
		m.after = &outcome{s, decision}
	}
	return m, nil
}

func (d *Driver) retryRaces(ctx context.Context, key types.NamespacedName, i plan.Intent, admissions []admission) (mutation, error) {
	// The event of the write that wins the race may come during the attempt.
	changed, stop := d.engine.Observer.Changes.Subscribe(key)
	defer stop()
	var last engine.Repeated
	for races := 0; ; races++ {
		m, err := d.carryOut(ctx, key, i, admissions, &last)
		if err == nil || !engine.IsConflict(err) || races == maxRaces {
			return m, err
		}
		select {
		case <-changed:
		case <-time.After(raceTimeout):
		case <-ctx.Done():
			return m, observe.ContractError(context.Cause(ctx))
		}
	}
}

// carryOut observes, decides and writes once, and again after a write of bounds.
func (d *Driver) carryOut(ctx context.Context, key types.NamespacedName, i plan.Intent, admissions []admission, last *engine.Repeated) (mutation, error) {
	var policies []*pb.ReleasePolicy
	if begin, is := i.(plan.Begin); is {
		policies = append(policies, begin.Policy)
	}
	s, err := d.observeNew(ctx, key, policies...)
	if err != nil {
		return mutation{}, err
	}
	m := mutation{action: pb.Action_ACTION_UNCHANGED, outcome: outcome{snapshot: s}}
	if m.decision, err = d.engine.Decide(s, i); err != nil || m.decision.Action == nil {
		return m, err
	}
	for _, admit := range admissions {
		if err := admit(ctx, s, &m.decision); err != nil {
			return m, observe.ContractError(err)
		}
	}
	wrote, err := d.engine.Do(ctx, s, m.decision.Action)
	if wrote {
		m.action = pb.Action_ACTION_CONFIGURED
	}
	if _, bounds := m.decision.Action.(plan.SetBounds); !bounds || err != nil {
		return m, err
	}
	// The record of a DisaggregatedSet follows its bounds, unless something undoes these.
	if err := last.Count(key, m.decision.Action, wrote); err != nil {
		return m, err
	}
	next, err := d.carryOut(ctx, key, i, admissions, last)
	next.action = m.action
	next.decision.Warnings = m.decision.Warnings
	return next, err
}

// observeNew observes a workload that may have just been created: one that is not in the cache is requested from the API server
// before the call fails with WORKLOAD_NOT_FOUND.
func (d *Driver) observeNew(ctx context.Context, key types.NamespacedName, next ...*pb.ReleasePolicy) (*observe.Snapshot, error) {
	d.awaitSets(ctx, key)
	s, err := d.engine.Observe(key, next...)
	if drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND || observe.IsSet(key) {
		return s, err
	}
	live, errLive := d.sets.LeaderworkersetV1().LeaderWorkerSets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(errLive) {
		return nil, err
	}
	if errLive != nil {
		return nil, observe.ContractError(fmt.Errorf("get LeaderWorkerSet %s: %w", key, errLive))
	}
	if err := d.engine.Applier.CatchUp(ctx, key, live); err != nil {
		return nil, observe.ContractError(err)
	}
	return d.engine.Observe(key, next...)
}

// await returns the context of the workload that was changed once it is settled, at the latest after wait, and before the call's own
// deadline. Its groups are left out if too many answers with groups are being made: what was asked for is recorded.
func (d *Driver) await(ctx context.Context, key types.NamespacedName, m mutation, wait *durationpb.Duration, rows bool) (*pb.BatchContext, error) {
	var c *pb.BatchContext
	var s *observe.Snapshot
	if m.after != nil {
		s, c = m.after.snapshot, describeWorkload(m.after.snapshot, m.after.decision)
	}
	if c == nil || wait.AsDuration() > 0 && !plugin.Settled(c.GetState()) {
		if err := d.pollUntil(ctx, key, wait, func() (_ bool, err error) {
			c, s, err = d.contextOf(key, "", false)
			return plugin.Settled(c.GetState()), err
		}); err != nil {
			return nil, err
		}
	}
	switch {
	case !rows:
	case access.Turn(ctx):
		addGroups(c, s, maxGroupRows)
	default:
		addGroups(c, s, 0)
	}
	return c, nil
}

// pollUntil calls look on every change until it is done or fails, or wait expires.
func (d *Driver) pollUntil(ctx context.Context, key types.NamespacedName, wait *durationpb.Duration, look func() (done bool, err error)) error {
	// Without a wait it looks once.
	limit := min(max(wait.AsDuration(), 0), maxWait)
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)-answerTime)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// A change between the look and the wait must not be missed.
	changed, stop := d.engine.Observer.Changes.Subscribe(key)
	defer stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-changed: // the queue's timers notify as well, so time alone wakes this up too
		case <-ctx.Done():
			return nil
		case <-d.stopped:
			return nil
		}
	}
}

// fieldViolation returns what is wrong with a field of a request.
func fieldViolation(field, format string, args ...any) []drivererr.FieldViolation {
	return []drivererr.FieldViolation{{Field: field, Description: fmt.Sprintf(format, args...)}}
}

// checkDuration refuses an invalid or negative duration.
func checkDuration(field string, d *durationpb.Duration) []drivererr.FieldViolation {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() < 0) {
		return fieldViolation(field, "must be a valid duration, not negative")
	}
	return nil
}

// awaitRead returns once the caches that the workload's traffic and autoscalers are read from, and others, are filled or can't be. A driver
// that has just started fills those that the last release needed, while its host may be about to begin the next.
func (d *Driver) awaitRead(ctx context.Context, key types.NamespacedName, pending ...func() bool) {
	pending = append(pending, d.engine.Observer.Autoscalers.Pending)
	_ = d.pollUntil(ctx, key, durationpb.New(readTimeout), func() (bool, error) {
		s, err := d.engine.Observe(key)
		if err != nil {
			return false, err // the caller's next observation returns it too
		}
		return !plan.Unread(s.Observation) && !slices.ContainsFunc(pending, func(is func() bool) bool { return is() }), nil
	})
}

// awaitNearby is awaitRead for a call that judges a release, of a workload that may have just been created.
func (d *Driver) awaitNearby(ctx context.Context, key types.NamespacedName) error {
	// The caches fill while a new workload is waited for.
	d.engine.Observer.Nearby.Start()
	if _, err := d.observeNew(ctx, key); err != nil {
		return err
	}
	d.awaitRead(ctx, key, d.engine.Observer.Nearby.Pending)
	return nil
}

// awaitSets returns once the caches of a DisaggregatedSet are filled or can't be.
func (d *Driver) awaitSets(ctx context.Context, key types.NamespacedName) {
	if observe.IsSet(key) {
		_ = d.pollUntil(ctx, key, durationpb.New(readTimeout), func() (bool, error) { return !d.engine.Observer.Disaggregated.Pending(), nil })
	}
}

// takeTurn waits for the turn of a call that computes much. The call has waited for its caches before, so that it does not keep others from theirs.
func takeTurn(ctx context.Context, key types.NamespacedName) error {
	if access.Turn(ctx) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED, "too many such calls for namespace %s are waiting: call again later", key.Namespace)
}

// maxUser is the longest name of a user that is recorded, in bytes.
const maxUser = 253

// userOf returns the name of the authenticated caller, or "" if the call was not authenticated.
func userOf(ctx context.Context) string {
	u := access.UserOf(ctx)
	if u == nil {
		return ""
	}
	return observe.Shorten(u.GetName(), maxUser)
}

// audit logs a mutating call: who requested what, what was decided, and the result.
// Hosts repeat calls all the time, so those that changed nothing are logged at debug level.
func (d *Driver) audit(ctx context.Context, key types.NamespacedName, i plan.Intent, m mutation, err error) {
	method, _ := grpc.Method(ctx)
	level, attrs := slog.LevelInfo, []slog.Attr{
		slog.String("user", userOf(ctx)), slog.String("method", method), slog.String("workload", key.String()),
		slog.String("release", releaseOf(i)), slog.String("code", status.Code(err).String()),
	}
	switch {
	case err != nil:
		attrs = append(attrs, slog.String("error", status.Convert(err).Message()))
	case m.decision.Action == nil:
		level = slog.LevelDebug
		attrs = append(attrs, slog.String("decision", "nothing to do"))
	default:
		attrs = append(attrs, slog.String("decision", fmt.Sprint(m.decision.Action)))
	}
	d.options.Logger.LogAttrs(ctx, level, "audit", attrs...)
}

// releaseOf returns the release that an intent names, or "" if there is none.
func releaseOf(i plan.Intent) string {
	switch i := i.(type) {
	case plan.Begin:
		return i.ReleaseID
	case plan.SetTarget:
		return i.ReleaseID
	case plan.Promote:
		return i.ReleaseID
	case plan.RollBack:
		return i.ReleaseID
	case plan.Route:
		return i.ReleaseID
	}
	return ""
}
