// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// FakeDriver is a driver in memory. It keeps the promises of SPEC.md, and serves everything but Plan, Preflight, ListRevisions,
// Undo and mirrors. Its groups are ready at once, and so are routes, unless a hook changes that. It is safe for concurrent use.
//
// A hook is called with the driver locked and the context that the call would leave behind. It may change that, or refuse the
// call, which then changes nothing. Hooks are optional, and set before the driver is served.
type FakeDriver struct {
	pb.UnimplementedWorkloadDriverServer
	pb.UnimplementedTrafficRouterServer

	OnInitialize func(c *pb.BatchContext) error
	OnUpgrade    func(batch int32, c *pb.BatchContext) error
	OnSetWeight  func(weight int32, c *pb.BatchContext) error
	OnFinalize   func(intent pb.FinalizeIntent, c *pb.BatchContext) error
	// OnCalculate refuses CalculateBatchContext.
	OnCalculate func() error
	// NoTraffic makes a driver that splits no requests.
	NoTraffic bool

	mu        sync.Mutex
	workloads map[string]*workload
	calls     []string
	// changed is closed and replaced at each change and call.
	changed chan struct{}
}

var (
	_ pb.WorkloadDriverServer = (*FakeDriver)(nil)
	_ pb.TrafficRouterServer  = (*FakeDriver)(nil)
)

// workload is one workload and its last release.
type workload struct {
	// context is replaced and never changed, so that what was handed out stays as it is.
	context *pb.BatchContext
	policy  *pb.ReleasePolicy
}

// NewFakeDriver returns a driver without workloads.
func NewFakeDriver() *FakeDriver {
	return &FakeDriver{workloads: map[string]*workload{}, changed: make(chan struct{})}
}

// SetWorkload creates a workload or gives it another template: revision is its hash.
func (d *FakeDriver) SetWorkload(namespace, name string, replicas int32, revision string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workloads[namespace+"/"+name]
	if w == nil {
		w = &workload{context: &pb.BatchContext{
			Workload: &pb.WorkloadRef{Namespace: namespace, Name: name}, Size: 1,
			State: pb.State_STATE_UNMANAGED, Reason: "NotAdopted", TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS,
		}}
		d.workloads[namespace+"/"+name] = w
	}
	d.set(w, func(c *pb.BatchContext) {
		c.Replicas, c.TemplateRevision = replicas, revision
		if c.State == pb.State_STATE_UNMANAGED {
			c.StableRevision = revision
		}
		if c.ReleaseId == "" {
			c.UpdateRevision = revision
		}
		count(c)
	})
}

// Set changes the context of a workload, as its cluster would.
func (d *FakeDriver) Set(namespace, name string, change func(c *pb.BatchContext)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set(d.workloads[namespace+"/"+name], change)
}

// Context returns a copy of the context of a workload.
func (d *FakeDriver) Context(namespace, name string) *pb.BatchContext {
	d.mu.Lock()
	defer d.mu.Unlock()
	return proto.CloneOf(d.contextOf(namespace, name))
}

// contextOf returns the context of a workload, nil if that does not exist. d.mu is held.
func (d *FakeDriver) contextOf(namespace, name string) *pb.BatchContext {
	if w := d.workloads[namespace+"/"+name]; w != nil {
		return w.context
	}
	return nil
}

// Calls returns the calls so far, such as "Initialize id", "UpgradeBatch 0", "SetWeight 25" and "Finalize PROMOTE". Equal ones in
// a row are one.
func (d *FakeDriver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Await returns once the context of a workload and the calls satisfy a condition, or ctx ends.
func (d *FakeDriver) Await(ctx context.Context, namespace, name string, condition func(c *pb.BatchContext, calls []string) bool) error {
	for {
		d.mu.Lock()
		met, changed := condition(d.contextOf(namespace, name), d.calls), d.changed
		d.mu.Unlock()
		if met {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the fake driver: %w", ctx.Err())
		case <-changed:
		}
	}
}

// set replaces the context of a workload. d.mu is held.
func (d *FakeDriver) set(w *workload, change func(c *pb.BatchContext)) {
	_ = d.apply(w, change, nil)
}

// apply changes the context by both functions, or not at all. d.mu is held.
func (d *FakeDriver) apply(w *workload, change func(c *pb.BatchContext), hook func(c *pb.BatchContext) error) error {
	next := proto.CloneOf(w.context)
	change(next)
	if hook != nil {
		if err := hook(next); err != nil {
			return err
		}
	}
	w.context = next
	d.notify()
	return nil
}

// notify wakes those that wait for a change. d.mu is held.
func (d *FakeDriver) notify() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// log records a call. d.mu is held.
func (d *FakeDriver) log(call ...any) {
	if now := strings.TrimSpace(fmt.Sprintln(call...)); len(d.calls) == 0 || d.calls[len(d.calls)-1] != now {
		d.calls = append(d.calls, now)
	}
	d.notify()
}

// wait is the long poll. It returns the context once its state is settled, wait has passed, or ctx ends.
func (d *FakeDriver) wait(ctx context.Context, ref *pb.WorkloadRef, wait *durationpb.Duration) *pb.BatchContext {
	ctx, cancel := context.WithTimeout(ctx, wait.AsDuration())
	defer cancel()
	_ = d.Await(ctx, ref.GetNamespace(), ref.GetName(), func(c *pb.BatchContext, _ []string) bool { return plugin.Settled(c.GetState()) })
	return d.Context(ref.GetNamespace(), ref.GetName())
}

// find returns a workload, and an error if it does not exist or if its release has another id. An empty id means any. d.mu is held.
func (d *FakeDriver) find(ref *pb.WorkloadRef, id string) (*workload, error) {
	if ref.GetNamespace() == "" || ref.GetName() == "" {
		return nil, drivererr.Invalid(drivererr.FieldViolation{Field: "workload", Description: "namespace and name are required"})
	}
	w := d.workloads[ref.GetNamespace()+"/"+ref.GetName()]
	switch {
	case w == nil:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND,
			"there is no LeaderWorkerSet %s/%s", ref.GetNamespace(), ref.GetName())
	case id != "" && w.context.GetReleaseId() != id:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND, "there is no release %s", id)
	}
	return w, nil
}

// findRevision returns find's workload, and an error if its release is of another revision, unless that is empty. d.mu is held.
func (d *FakeDriver) findRevision(req interface {
	GetWorkload() *pb.WorkloadRef
	GetReleaseId() string
	GetUpdateRevision() string
},
) (*workload, error) {
	w, err := d.find(req.GetWorkload(), req.GetReleaseId())
	if err != nil {
		return nil, err
	}
	return w, checkRevision(req.GetUpdateRevision(), w.context.GetUpdateRevision())
}

func checkRevision(want, now string) error {
	if want != "" && want != now {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, "the template is at revision %s, not %s", now, want)
	}
	return nil
}

// checkFree returns an error if a release excludes others.
func (w *workload) checkFree() error {
	c := w.context
	if c.GetReleaseId() == "" || ended(c) || c.GetState() == pb.State_STATE_NOTHING_TO_RELEASE {
		return nil
	}
	err := drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "release %s of %s holds workload %s/%s",
		c.GetReleaseId(), c.GetOwner(), c.GetWorkload().GetNamespace(), c.GetWorkload().GetName())
	return drivererr.WithMetadata(drivererr.WithMetadata(err, "release_id", c.GetReleaseId()), "owner", c.GetOwner())
}

// checkOpen returns an error if the release is being finalized.
func (w *workload) checkOpen() error {
	if finalizing(w.context) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "release %s is being finalized", w.context.GetReleaseId())
	}
	return nil
}

// configured returns the action of a call that wrote or not.
func configured(wrote bool) pb.Action {
	if wrote {
		return pb.Action_ACTION_CONFIGURED
	}
	return pb.Action_ACTION_UNCHANGED
}

// count fills in the numbers of groups. Those of a partition replace others, those of a canary are in addition.
func count(c *pb.BatchContext) {
	c.Desired, c.Updated, c.UpdatedReady = c.GetPlanned(), c.GetPlanned(), c.GetPlanned()
	c.StableReady, c.Total = c.GetReplicas(), c.GetReplicas()
	if c.GetStyle() == pb.Style_STYLE_PARTITION {
		c.StableReady -= c.GetPlanned()
	} else {
		c.Total += c.GetPlanned()
	}
	if !routed(c) {
		c.TrafficWeight = 100 * c.GetPlanned() / max(c.GetTotal(), 1)
	}
}

// clearBatch removes what batches have left.
func clearBatch(c *pb.BatchContext) {
	c.CurrentBatch, c.Target, c.Planned, c.TrafficWeight = nil, "", 0, 0
	count(c)
}

func routed(c *pb.BatchContext) bool {
	return c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
}

func ended(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_COMPLETED || c.GetState() == pb.State_STATE_ROLLED_BACK
}

func finalizing(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_PROMOTING || c.GetState() == pb.State_STATE_ROLLING_BACK || ended(c)
}

// groups resolves "3" or "25%" of replicas, rounded up and clamped.
func groups(target string, replicas int32) (int32, error) {
	number, percent := strings.CutSuffix(target, "%")
	value, err := strconv.ParseInt(number, 10, 32)
	if err != nil || value < 0 || (percent && value > 100) {
		return 0, errors.New("want a count, or a percentage from 0% to 100%")
	}
	if percent {
		value = (value*int64(replicas) + 99) / 100
	}
	return min(int32(value), replicas), nil
}
