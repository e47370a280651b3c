// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openkruise/rollouts/api/v1beta1"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// model is a workload with a driver, in memory. Groups become ready, and ends are reached, when tick is called.
type model struct {
	exists    bool
	replicas  int32
	kept      int32    // groups that only the promotion replaces
	groups    []string // the revision of each group in place
	canary    int32    // groups beside them
	ready     int32    // updated groups that are ready
	template  string
	stable    string
	update    string
	id, owner string
	style     pb.Style
	state     pb.State
	target    string
	intent    pb.FinalizeIntent
	calls     []string
	fail      error
}

var _ converge.Driver = (*model)(nil)

func newModel(replicas int32) *model {
	d := &model{exists: true, replicas: replicas, template: "v1", stable: "v1", state: pb.State_STATE_UNMANAGED}
	d.resize()
	return d
}

func (d *model) resize() {
	for int32(len(d.groups)) < d.replicas {
		d.groups = append(d.groups, d.stable)
	}
	d.groups = d.groups[:d.replicas]
	if d.state == pb.State_STATE_READY && d.updated() < d.planned() {
		d.state = pb.State_STATE_UPGRADING
	}
}

func (d *model) flying() bool {
	switch d.state {
	case pb.State_STATE_UNMANAGED, pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK, pb.State_STATE_NOTHING_TO_RELEASE:
		return false
	default:
		return d.id != ""
	}
}

func (d *model) planned() int32 {
	if d.state == pb.State_STATE_PROMOTING || d.state == pb.State_STATE_COMPLETED {
		return d.replicas
	}
	if d.target == "" {
		return 0
	}
	return min(plannedGroups(v1beta1.ReleaseBatch{CanaryReplicas: intstr.Parse(d.target)}, d.replicas), d.replicas-d.kept)
}

func (d *model) updated() int32 {
	if d.id == "" {
		return 0
	}
	n := d.canary
	for _, g := range d.groups {
		if g == d.update {
			n++
		}
	}
	return n
}

func (d *model) context() *pb.BatchContext {
	if !d.exists {
		return nil
	}
	updated := d.updated()
	total := d.replicas + d.canary
	return &pb.BatchContext{
		State: d.state, ReleaseId: d.id, Owner: d.owner, Style: d.style, Replicas: d.replicas, Total: total,
		Target: d.target, Planned: d.planned(), Updated: updated, UpdatedReady: min(d.ready, updated), StableReady: max(d.replicas-(updated-d.canary), 0),
		StableRevision: d.stable, UpdateRevision: d.update, TemplateRevision: d.template, Intent: d.intent, Reason: "Reason", Message: "message",
	}
}

// tick lets the cluster get as far as it can in one go, of which a schedule may choose to see nothing.
func (d *model) tick() {
	switch {
	case !d.exists || !d.flying():
	case d.state == pb.State_STATE_ROLLING_BACK:
		d.canary = 0
		for i := range d.groups {
			d.groups[i] = d.stable
		}
		d.state, d.ready = pb.State_STATE_ROLLED_BACK, 0
	case d.template == d.stable && d.state != pb.State_STATE_PROMOTING:
		d.state = pb.State_STATE_ROLLING_BACK
	case d.template != d.update:
		for i := range d.groups {
			d.groups[i] = d.stable
		}
		d.update, d.target, d.canary, d.ready, d.state = d.template, "", 0, 0, pb.State_STATE_HOLDING
	case d.state == pb.State_STATE_PROMOTING:
		for i := range d.groups {
			d.groups[i] = d.update
		}
		d.canary, d.ready, d.state = 0, d.replicas, pb.State_STATE_COMPLETED
	case d.state == pb.State_STATE_PREPARING:
		d.state = pb.State_STATE_HOLDING
	case d.state == pb.State_STATE_UPGRADING || d.state == pb.State_STATE_FAILED:
		if d.style == pb.Style_STYLE_PARTITION {
			for i := range d.groups[d.replicas-d.planned():] {
				d.groups[int(d.replicas-d.planned())+i] = d.update
			}
		} else {
			d.canary = d.planned()
		}
		d.ready, d.state = d.planned(), pb.State_STATE_READY
	}
}

// settle ticks until nothing changes any more.
func (d *model) settle() {
	for range 5 {
		d.tick()
	}
}

// Call answers a request, if there is one. Disown is not called: the workload stays under hold.
func (d *model) Call(_ context.Context, request proto.Message) (*pb.BatchContext, error) {
	changed := drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, "changed")
	switch r := request.(type) {
	case nil:
		return nil, nil //nolint:nilnil // Nothing was asked.
	case *pb.AdoptRequest:
		d.calls = append(d.calls, "Adopt")
		if d.fail == nil && d.state == pb.State_STATE_UNMANAGED {
			d.state = pb.State_STATE_HOLDING
		}
	case *pb.InitializeRequest:
		d.calls = append(d.calls, "Initialize "+d.template)
		if d.fail != nil {
			break
		}
		if d.flying() && d.id != r.GetReleaseId() {
			return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "in progress")
		}
		d.stable = plugin.Serving(d.context())
		d.id, d.owner, d.style, d.update = r.GetReleaseId(), r.GetOwner(), r.GetPolicy().GetStyle(), d.template
		d.state, d.target, d.ready = pb.State_STATE_PREPARING, "", 0
	case *pb.UpgradeBatchRequest:
		d.calls = append(d.calls, "UpgradeBatch "+r.GetGroups())
		switch {
		case d.fail != nil:
		case !d.flying() || d.state == pb.State_STATE_PROMOTING || d.state == pb.State_STATE_ROLLING_BACK:
			return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "finalized")
		case r.GetUpdateRevision() != d.template:
			return nil, changed
		case d.target == "" || plannedGroups(v1beta1.ReleaseBatch{CanaryReplicas: intstr.Parse(r.GetGroups())}, d.replicas) > d.planned():
			d.target, d.state = r.GetGroups(), pb.State_STATE_UPGRADING
		}
	case *pb.FinalizeRequest:
		d.calls = append(d.calls, strings.TrimPrefix(r.GetIntent().String(), "FINALIZE_INTENT_"))
		switch {
		case d.fail != nil:
		case r.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK:
			d.state = pb.State_STATE_ROLLING_BACK
		case r.GetUpdateRevision() != d.template:
			return nil, changed
		default:
			d.state = pb.State_STATE_PROMOTING
		}
	default:
		return nil, fmt.Errorf("unexpected %T", r)
	}
	return nil, d.fail
}

// batchRelease is of 4 quarters, at a partition. -1: none.
func batchRelease(partition int32, batches ...string) *v1beta1.BatchRelease {
	if len(batches) == 0 {
		batches = []string{"25%", "50%", "100%"}
	}
	r := &v1beta1.BatchRelease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm", UID: types.UID("01234567-89ab-cdef-0123-456789abcdef"), Generation: 1},
		Spec: v1beta1.BatchReleaseSpec{WorkloadRef: v1beta1.ObjectRef{
			APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "vllm",
		}},
	}
	for _, b := range batches {
		r.Spec.ReleasePlan.Batches = append(r.Spec.ReleasePlan.Batches, v1beta1.ReleaseBatch{CanaryReplicas: intstr.Parse(b)})
	}
	if partition >= 0 {
		r.Spec.ReleasePlan.BatchPartition = &partition
	}
	return r
}

// play is a host: it runs the loop until nothing is left to be done, or a call fails, and returns how the status went.
func play(t interface{ Fatalf(string, ...any) }, r *v1beta1.BatchRelease, d *model) []string {
	var story []string
	for range 50 {
		c := d.context()
		before, seen := r.DeepCopy(), proto.CloneOf(c)
		status, call := Next(r, c, noon)
		if diff := cmp.Diff(before, r); diff != "" || !proto.Equal(seen, c) {
			t.Fatalf("Next has changed what it was given: %s", diff)
		}
		if again, call2 := Next(r, c, noon); cmp.Diff(status, again) != "" || call2.Why != call.Why || !proto.Equal(call2.Request, call.Request) {
			t.Fatalf("Next is no function: %s", cmp.Diff(status, again))
		}
		changed := cmp.Diff(r.Status, status) != ""
		if changed {
			r.Status = status
			story = append(story, brief(status))
		}
		if _, err := d.Call(context.Background(), call.Request); err != nil {
			status := refused(r, err)
			if cmp.Diff(r.Status, status) != "" {
				r.Status = status
				story = append(story, brief(status))
			}
			return story
		}
		if !changed && call.Request == nil {
			return story
		}
	}
	t.Fatalf("it does not come to rest: %v", story)
	return nil
}

func brief(s v1beta1.BatchReleaseStatus) string {
	if s.Phase != v1beta1.RolloutPhaseProgressing {
		return string(s.Phase)
	}
	return fmt.Sprintf("%d %s", s.CanaryStatus.CurrentBatch, s.CanaryStatus.CurrentBatchState)
}

// run plays and lets the cluster settle in turn.
func run(t *testing.T, r *v1beta1.BatchRelease, d *model) []string {
	t.Helper()
	var story []string
	for range 20 {
		more := play(t, r, d)
		story = append(story, more...)
		before := d.context()
		d.settle()
		if len(more) == 0 && proto.Equal(before, d.context()) {
			return story
		}
	}
	t.Fatalf("it does not come to rest: %v", story)
	return nil
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

// refused is the status of a BatchRelease whose call the driver has refused.
func refused(r *v1beta1.BatchRelease, err error) v1beta1.BatchReleaseStatus {
	reason := plugin.CamelCase(drivererr.Name(plugin.Reason(err)))
	return Blocked(r, reason, grpcstatus.Convert(err).Message(), noon)
}
