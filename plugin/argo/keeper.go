// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Timing of the Keeper.
const (
	// soon is when a workload that is on its way somewhere is looked at again.
	soon = time.Second
	// later is when something that a person must mend is tried again.
	later = 30 * time.Second
	// absent is how often a workload is looked for that does not exist yet; it costs a GET.
	absent = 2 * time.Second
)

// fieldManager names the Keeper in managed fields.
const fieldManager = "lockstep-argo"

// rolloutResource is what the Keeper watches.
var rolloutResource = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}

// Recorder tells people about a Rollout.
type Recorder interface {
	// Warn says what is wrong with it.
	Warn(ro *v1alpha1.Rollout, reason, message string)
}

// Keeper does what no plugin call asks for: it holds the workload of each Rollout from the moment both exist, writes the
// workload's template revision into the Rollout's pod template so that an edit starts it, ends releases that Argo has
// ended, and gives a workload back when its Rollout is deleted.
//
// It decides from the cluster each time. Two Keepers at once, or one that was away, do no harm: writes on Rollouts
// carry a resourceVersion, calls of the driver are idempotent.
type Keeper struct {
	// Driver and Client are required.
	Driver Driver
	Client dynamic.Interface
	// Logger is required.
	Logger *slog.Logger
	// Recorder may be nil.
	Recorder Recorder
	// Namespace is the only one to look at. Empty: all.
	Namespace string
	// UnroutedOnly leaves Rollouts that have a traffic-router plugin to its process.
	UnroutedOnly bool
	// Adopted lists the workloads that carry the driver's record. Nil: not known, and a Rollout that was deleted while no
	// Keeper ran keeps its workload under hold.
	Adopted func(context.Context) ([]types.NamespacedName, error)

	setup sync.Once
	store cache.SharedIndexInformer
	queue workqueue.TypedRateLimitingInterface[item]

	mu      sync.Mutex
	names   map[types.UID]types.NamespacedName // the workload of each Rollout, as it was last said
	watches map[types.NamespacedName]context.CancelFunc
	warned  map[types.UID]string
}

var _ Rivals = (*Keeper)(nil)

// item is what the queue holds: a Rollout, or a workload that may have lost its own.
type item struct {
	workload bool
	types.NamespacedName
}

// byWorkload is the index of Rollouts by "namespace/workload".
const byWorkload = "workload"

func (k *Keeper) init() {
	k.setup.Do(func() {
		k.names = map[types.UID]types.NamespacedName{}
		k.watches = map[types.NamespacedName]context.CancelFunc{}
		k.warned = map[types.UID]string{}
		k.queue = workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[item](200*time.Millisecond, later))
		k.store = newRolloutInformer(k.Client, k.Namespace)
	})
}

// Run works until ctx has ended.
func (k *Keeper) Run(ctx context.Context) error {
	k.init()
	if _, err := k.store.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.changed(nil, o) },
		UpdateFunc: k.changed,
		DeleteFunc: k.deleted,
	}); err != nil {
		return fmt.Errorf("watch Rollouts: %w", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer k.queue.ShutDown() // before the wait for the worker that it ends
	running.Go(func() { k.store.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), k.store.HasSynced) {
		return nil
	}
	running.Go(func() { k.findOrphans(ctx) })
	running.Go(func() {
		for k.work(ctx) {
		}
	})
	<-ctx.Done()
	return nil
}

// changed is told of Rollouts that came or changed.
func (k *Keeper) changed(before, after any) {
	ro, ok := after.(*v1alpha1.Rollout)
	if !ok {
		return
	}
	if was, ok := before.(*v1alpha1.Rollout); ok && was.UID != ro.UID {
		k.deleted(was)
	}
	k.queue.Add(item{NamespacedName: keyOf(ro)})
	if workload, err := workloadOf(ro); err == nil { // a mistake lets go of nothing
		k.leaves(ro.UID, workload)
	}
}

// leaves notes which workload a Rollout names from now on, and has the one looked at that it named before.
func (k *Keeper) leaves(rollout types.UID, now types.NamespacedName) {
	k.mu.Lock()
	old := k.names[rollout]
	if now.Name == "" {
		delete(k.names, rollout)
	} else {
		k.names[rollout] = now
	}
	k.mu.Unlock()
	if old.Name != "" && old != now {
		k.queue.Add(item{workload: true, NamespacedName: old})
	}
}

// deleted is told of Rollouts that went.
func (k *Keeper) deleted(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if ro, ok := o.(metav1.Object); ok {
		k.mu.Lock()
		delete(k.warned, ro.GetUID())
		k.mu.Unlock()
		k.leaves(ro.GetUID(), types.NamespacedName{})
	}
}

// findOrphans looks for workloads whose Rollout went while no Keeper ran.
func (k *Keeper) findOrphans(ctx context.Context) {
	for k.Adopted != nil && ctx.Err() == nil {
		workloads, err := k.Adopted(ctx)
		if apierrors.IsForbidden(err) {
			k.Logger.Info("not looking for workloads of Rollouts that were deleted in the past", "error", err)
			return
		}
		if err != nil {
			k.Logger.Warn("look for workloads of deleted Rollouts", "error", err)
			sleep(ctx, later)
			continue
		}
		for _, workload := range workloads {
			c, err := k.lookAt(ctx, workload)
			for ; passing(err) && ctx.Err() == nil; c, err = k.lookAt(ctx, workload) {
				sleep(ctx, soon) // the driver fills its caches, or is away
			}
			if _, _, ours := ownerOf(c.GetOwner()); err == nil && ours {
				k.queue.Add(item{workload: true, NamespacedName: workload})
			}
		}
		return
	}
}

// work does one item; false means that the queue is shut.
func (k *Keeper) work(ctx context.Context) bool {
	i, quit := k.queue.Get()
	if quit || ctx.Err() != nil {
		return false
	}
	defer k.queue.Done(i)
	do := k.keepRollout
	if i.workload {
		do = k.freeWorkload
	}
	after, err := do(ctx, i.NamespacedName)
	switch {
	case err == nil && after == 0:
		k.queue.Forget(i)
	case err == nil:
		k.queue.Forget(i)
		k.queue.AddAfter(i, after)
	case ctx.Err() != nil:
	case passing(err), overtaken(err), apierrors.IsConflict(err):
		k.queue.AddRateLimited(i)
	default:
		k.Logger.Warn("keep", "item", i.String(), "workload", i.workload, "error", err)
		k.queue.AddAfter(i, later)
	}
	return true
}

// keepRollout does what is due for a Rollout. It returns when to look again without being told.
func (k *Keeper) keepRollout(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	ro := k.get(key)
	if ro == nil {
		return 0, nil
	}
	config, mistake := ReadAnyway(ro)
	if mistake != nil {
		k.warnOnce(ro, "InvalidConfig", mistake.Error())
	}
	if config == nil || !k.minds(config) {
		return 0, nil
	}
	if native(ro, config) && ro.Spec.Replicas != nil && *ro.Spec.Replicas == 0 {
		k.warnOnce(ro, "WeightNotSet", "with replicas: 0 Argo's setWeight moves no requests: "+
			"use `weight` in the steps of "+PluginName+", or give the Rollout a replica")
	}
	f := ReadFacts(ro)
	workload := types.NamespacedName{Namespace: f.Namespace, Name: config.Workload}
	if f.Deleting {
		k.queue.Add(item{workload: true, NamespacedName: workload})
		return 0, nil
	}
	k.watch(ctx, workload)
	f.Rival = k.Rival(f, config.Workload)
	if f.Rival != "" {
		k.warnOnce(ro, "WorkloadTaken", fmt.Sprintf(
			"LeaderWorkerSet %s is released by Rollout %s, which was there first: this Rollout releases nothing", workload, f.Rival))
	}
	t := newTarget(k.Driver, f, config)
	c, err := t.look(ctx)
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
		return 0, nil // The watch tells when it is there.
	}
	if err != nil {
		return 0, err
	}
	m := keep(f, config, c, k.Driver.Has(pb.Capability_CAPABILITY_UNDO))
	if m.action == actWait {
		return 0, nil
	}
	if sure, err := k.confirmed(ctx, key, c, m); !sure || err != nil {
		return soon, err
	}
	k.Logger.Info(m.why, "rollout", key.String(), "workload", workload.String(), "release", m.release, "revision", m.revision)
	if m.action == actStamp {
		err = k.stamp(ctx, f, m)
	} else {
		_, err = t.perform(ctx, m, Step{})
	}
	if err != nil && !passing(err) && !overtaken(err) && !apierrors.IsConflict(err) {
		k.warn(ro, "NotDone", fmt.Sprintf("%s: %s", m.why, text(err)))
	}
	// What is done shows in the workload or in the Rollout, and there may be more to do.
	return soon, err
}

// confirmed says whether a move follows from the Rollout as the API server has it now. The cache may be behind, and say of a
// release that Argo has just begun that it is over; a release that was ended can't be gone on with.
func (k *Keeper) confirmed(ctx context.Context, key types.NamespacedName, c *pb.BatchContext, m move) (bool, error) {
	switch m.action {
	case actInitialize, actUndo, actRollback, actPromote:
	default:
		return true, nil // they begin and end nothing, or carry a resourceVersion
	}
	u, err := k.Client.Resource(rolloutResource).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get Rollout %s: %w", key, err)
	}
	o, err := readRollout(u)
	ro, ok := o.(*v1alpha1.Rollout)
	if err != nil || !ok {
		return false, err
	}
	config, _ := ReadAnyway(ro) // the mistake has been told
	if config == nil {
		return false, nil
	}
	f := ReadFacts(ro)
	f.Rival = k.Rival(f, config.Workload)
	now := keep(f, config, c, k.Driver.Has(pb.Capability_CAPABILITY_UNDO))
	return now.action == m.action && now.release == m.release && now.revision == m.revision, nil
}

// minds says whether the Rollout is this process's to keep.
func (k *Keeper) minds(config *Config) bool {
	return !k.UnroutedOnly || !config.Routed
}

func (k *Keeper) stamp(ctx context.Context, f Facts, m move) error {
	_, err := k.Client.Resource(rolloutResource).Namespace(f.Namespace).Patch(ctx, f.Name, types.MergePatchType,
		m.stamp.patch(f), metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("annotate Rollout %s/%s: %w", f.Namespace, f.Name, err)
	}
	return nil
}

// freeWorkload gives a workload back whose Rollout is gone: first the release in flight is rolled back, then the hold
// goes. A workload that another Rollout names keeps its hold.
func (k *Keeper) freeWorkload(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	others := k.rollouts(key)
	if len(others) == 0 {
		k.unwatch(key) // else they are told when it appears
	}
	c, err := k.lookAt(ctx, key)
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	owner := k.owner(c, others)
	ref := &pb.WorkloadRef{Namespace: key.Namespace, Name: key.Name}
	switch {
	case c.GetState() == pb.State_STATE_UNMANAGED, owner == ownerAlive:
	case inFlight(c) && owner == ownerForeign:
		// Somebody else's release. Its workload is looked at again when it is over.
		return later, nil
	case inFlight(c) && (c.GetState() == pb.State_STATE_ROLLING_BACK || c.GetState() == pb.State_STATE_PROMOTING):
		return soon, nil
	case inFlight(c):
		k.Logger.Info("rolling back: the Rollout of this release is gone", "workload", key.String(), "release", c.GetReleaseId())
		_, err = k.Driver.Finalize(ctx, &pb.FinalizeRequest{
			Workload: ref, ReleaseId: c.GetReleaseId(), Intent: pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK,
		})
		return soon, err
	case len(others) == 0:
		k.Logger.Info("giving the workload back: its Rollout is gone", "workload", key.String())
		_, err = k.Driver.Disown(ctx, &pb.DisownRequest{Workload: ref})
		return 0, err
	}
	for _, ro := range others {
		k.queue.Add(item{NamespacedName: keyOf(ro)})
	}
	return 0, nil
}

// Whose the last release of a workload is.
type ownership int

const (
	// ownerGone is a Rollout that is not there, or nobody.
	ownerGone ownership = iota
	// ownerAlive is a Rollout that still names the workload.
	ownerAlive
	// ownerForeign is another host, or a Rollout in a place where this Keeper does not look.
	ownerForeign
)

func (k *Keeper) owner(c *pb.BatchContext, others []*v1alpha1.Rollout) ownership {
	namespace, name, ours := ownerOf(c.GetOwner())
	if c.GetOwner() == "" {
		return ownerGone
	}
	if !ours || k.Namespace != "" && k.Namespace != namespace {
		return ownerForeign
	}
	for _, ro := range others {
		if ro.Name == name {
			return ownerAlive
		}
	}
	if k.unclear(types.NamespacedName{Namespace: namespace, Name: name}) {
		return ownerAlive
	}
	return ownerGone
}

// Rival returns the name of the Rollout that came to the workload first, if that is not the given one.
func (k *Keeper) Rival(f Facts, workload string) string {
	k.init()
	if !k.store.HasSynced() {
		return ""
	}
	first := k.get(types.NamespacedName{Namespace: f.Namespace, Name: f.Name})
	if first == nil { // not seen yet
		first = &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{
			Name: f.Name, CreationTimestamp: metav1.NewTime(f.Created), Annotations: map[string]string{AnnotationFirst: f.First},
		}}
	}
	for _, ro := range k.rollouts(types.NamespacedName{Namespace: f.Namespace, Name: workload}) {
		if before(ro, first) {
			first = ro
		}
	}
	if first.Name == f.Name {
		return ""
	}
	return first.Name
}

// before says whether a Rollout came to its workload before another one. Of two that were made in the same second it is the one
// that this plugin has written on, or else the one whose name is first.
func before(a, b *v1alpha1.Rollout) bool {
	if !a.CreationTimestamp.Time.Equal(b.CreationTimestamp.Time) {
		return a.CreationTimestamp.Time.Before(b.CreationTimestamp.Time)
	}
	if ours := a.Annotations[AnnotationFirst] != ""; ours != (b.Annotations[AnnotationFirst] != "") {
		return ours
	}
	return a.Name < b.Name
}

// rollouts are those that name the workload and are not being deleted.
func (k *Keeper) rollouts(workload types.NamespacedName) []*v1alpha1.Rollout {
	var out []*v1alpha1.Rollout
	objects, _ := k.store.GetIndexer().ByIndex(byWorkload, workload.String()) // The index exists.
	for _, o := range objects {
		if ro, ok := o.(*v1alpha1.Rollout); ok && ro.DeletionTimestamp == nil {
			out = append(out, ro)
		}
	}
	return out
}

func (k *Keeper) get(key types.NamespacedName) *v1alpha1.Rollout {
	o, _, _ := k.store.GetIndexer().GetByKey(key.String()) // A map in memory.
	ro, _ := o.(*v1alpha1.Rollout)
	return ro
}

// unclear says whether there is a Rollout of which nobody can tell what it names: it must be mended, or deleted.
func (k *Keeper) unclear(key types.NamespacedName) bool {
	o, exists, _ := k.store.GetIndexer().GetByKey(key.String()) // A map in memory.
	ro, ok := o.(*v1alpha1.Rollout)
	if !ok {
		return exists
	}
	_, err := workloadOf(ro)
	return err != nil && ro.DeletionTimestamp == nil
}

func (k *Keeper) lookAt(ctx context.Context, key types.NamespacedName) (*pb.BatchContext, error) {
	return target{driver: k.Driver, ref: &pb.WorkloadRef{Namespace: key.Namespace, Name: key.Name}}.look(ctx)
}

// watch follows a workload, once, and has its Rollouts looked at whenever it changes.
func (k *Keeper) watch(ctx context.Context, workload types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watches[workload] != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx) //nolint:gosec // unwatch calls it.
	k.watches[workload] = cancel
	go k.follow(ctx, workload)
}

func (k *Keeper) unwatch(workload types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if cancel := k.watches[workload]; cancel != nil {
		cancel()
		delete(k.watches, workload)
	}
}

func (k *Keeper) follow(ctx context.Context, workload types.NamespacedName) {
	ref := &pb.WorkloadRef{Namespace: workload.Namespace, Name: workload.Name}
	for ctx.Err() == nil {
		for _, err := range k.Driver.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{Workload: ref}) {
			if err != nil {
				break
			}
			k.tell(workload)
		}
		// The workload is not there, the driver is away, or it has no watch: asking again is all there is to do.
		sleep(ctx, absent)
		if !k.Driver.Has(pb.Capability_CAPABILITY_WATCH) {
			k.tell(workload)
		}
	}
}

// tell has the Rollouts of a workload looked at.
func (k *Keeper) tell(workload types.NamespacedName) {
	for _, ro := range k.rollouts(workload) {
		k.queue.Add(item{NamespacedName: keyOf(ro)})
	}
}

// warnOnce tells people what is wrong with a Rollout, unless that was the last thing they were told of it.
func (k *Keeper) warnOnce(ro *v1alpha1.Rollout, reason, message string) {
	k.mu.Lock()
	news := k.warned[ro.UID] != message
	k.warned[ro.UID] = message
	k.mu.Unlock()
	if news {
		k.warn(ro, reason, message)
	}
}

func (k *Keeper) warn(ro *v1alpha1.Rollout, reason, message string) {
	k.Logger.Warn(message, "rollout", keyOf(ro).String(), "reason", reason)
	if k.Recorder != nil {
		k.Recorder.Warn(ro, reason, message)
	}
}

func keyOf(ro *v1alpha1.Rollout) types.NamespacedName {
	return types.NamespacedName{Namespace: ro.Namespace, Name: ro.Name}
}

// workloadOf is the workload that a Rollout names; zero for one that is not ours. The error is a mistake that hides which one
// it is.
func workloadOf(ro *v1alpha1.Rollout) (types.NamespacedName, error) {
	config, err := ReadAnyway(ro)
	if config == nil {
		return types.NamespacedName{}, err
	}
	return types.NamespacedName{Namespace: ro.Namespace, Name: config.Workload}, nil
}
