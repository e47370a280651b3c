// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	"github.com/lockstep-rollouts/lockstep/plugin/native"
)

const (
	// resync is how often every Rollout is reconciled without an event, in case one was missed.
	resync = 10 * time.Minute
	// byWorkload is the index of Rollouts by "namespace/workload".
	byWorkload = "workload"
)

var (
	rolloutResource    = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}
	replicaSetResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
)

// judged is a Rollout in the cache, with the judgement of all its fields: the type has only those of one version of Argo.
type judged struct {
	*v1alpha1.Rollout

	findings []native.Field
}

// newRolloutInformer returns an informer of Rollouts that stores them as judged. One that doesn't decode is stored as it is: a
// typed client would fail to list all others with it.
func newRolloutInformer(client dynamic.Interface, namespace string) cache.SharedIndexInformer {
	rollouts := dynamicinformer.NewFilteredDynamicInformer(client, rolloutResource, namespace, resync,
		guard.Indexers(cache.Indexers{byWorkload: informer.Index(workloadKeys)}), nil).Informer()
	_ = rollouts.SetTransform(guard.Transform(informer.Transform(judgeRollout), nil)) // fails only for an informer that runs
	return rollouts
}

func workloadKeys(j judged) []string {
	if workload, _ := workloadOf(j.Rollout); workload.Name != "" { // a mistake is reported when the Rollout is reconciled
		return []string{workload.String()}
	}
	return nil
}

// judgeRollout decodes and judges a Rollout.
func judgeRollout(u *unstructured.Unstructured) any {
	ro := readRollout(u)
	if ro == nil {
		return u
	}
	spec, _ := u.Object["spec"].(map[string]any)
	return judged{Rollout: ro, findings: nativeFields.Judge("spec", spec)}
}

// rolloutIn returns the Rollout of an object in the cache, nil if it doesn't decode.
func rolloutIn(o any) *v1alpha1.Rollout {
	j, _ := o.(judged)
	return j.Rollout
}

// readRollout decodes a Rollout, without its managed fields. It returns nil for one that doesn't decode.
func readRollout(u *unstructured.Unstructured) *v1alpha1.Rollout {
	ro := &v1alpha1.Rollout{}
	if host.Decode(u, ro) != nil {
		return nil
	}
	// They are a large part of an object, and nothing reads them.
	ro.ManagedFields = nil
	return ro
}

// rolloutsOf returns the Rollouts that name a workload by one of its names and are not being deleted.
func (c *Controller) rolloutsOf(names ...types.NamespacedName) []*v1alpha1.Rollout {
	var out []*v1alpha1.Rollout
	for _, name := range names {
		for _, j := range informer.List[judged](c.rollouts, byWorkload, name.String()) {
			if j.DeletionTimestamp == nil {
				out = append(out, j.Rollout)
			}
		}
	}
	return out
}

// get returns a Rollout, nil if it does not exist or doesn't decode.
func (c *Controller) get(key types.NamespacedName) *v1alpha1.Rollout {
	return informer.Get[judged](c.rollouts, key).Rollout
}

// ReadLenient is the function of that name, but it judges all fields of the Rollout if this version of it is in the cache.
func (c *Controller) ReadLenient(ro *v1alpha1.Rollout) (*Config, error) {
	c.init()
	if j := informer.Get[judged](c.rollouts, keyOf(ro)); j.Rollout != nil && j.UID == ro.UID && j.Generation == ro.Generation {
		return readLenient(ro, j.findings)
	}
	return ReadLenient(ro)
}

// unreadable reports whether a Rollout exists whose configuration does not tell which workload it names.
func (c *Controller) unreadable(key types.NamespacedName) bool {
	o := informer.Get[any](c.rollouts, key)
	ro := rolloutIn(o)
	if ro == nil {
		return o != nil
	}
	_, err := workloadOf(ro)
	return err != nil && ro.DeletionTimestamp == nil
}

// Rival returns the name of the oldest Rollout of the workload, if that is not the given one.
func (c *Controller) Rival(f Facts, workload string) string {
	c.init()
	// Until the cache is filled no rival is known. The driver refuses a second release all the same.
	if !c.rollouts.HasSynced() {
		return ""
	}
	oldest := c.get(types.NamespacedName{Namespace: f.Namespace, Name: f.Name})
	if oldest == nil { // not in the cache yet
		oldest = &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{
			Name: f.Name, CreationTimestamp: metav1.NewTime(f.Created), Annotations: map[string]string{AnnotationFirst: f.Noted.first},
		}}
	}
	for _, ro := range c.rolloutsOf(types.NamespacedName{Namespace: f.Namespace, Name: workload}) {
		if isOlder(ro, oldest) {
			oldest = ro
		}
	}
	if oldest.Name == f.Name {
		return ""
	}
	return oldest.Name
}

// isOlder reports whether Rollout a is older than b. Of two that were created in the same second it is the one that this plugin
// has annotated, or else the one whose name is first.
func isOlder(a, b *v1alpha1.Rollout) bool {
	if !a.CreationTimestamp.Time.Equal(b.CreationTimestamp.Time) {
		return a.CreationTimestamp.Time.Before(b.CreationTimestamp.Time)
	}
	if ours := a.Annotations[AnnotationFirst] != ""; ours != (b.Annotations[AnnotationFirst] != "") {
		return ours
	}
	return a.Name < b.Name
}

func keyOf(ro *v1alpha1.Rollout) types.NamespacedName {
	return types.NamespacedName{Namespace: ro.Namespace, Name: ro.Name}
}

// workloadOf returns the workload that a Rollout names, zero for a Rollout that does not use this plugin. The error is a mistake
// that hides the name.
func workloadOf(ro *v1alpha1.Rollout) (types.NamespacedName, error) {
	config, err := readLenient(ro, nil) // no judgement of the fields changes the name
	if config == nil {
		return types.NamespacedName{}, err
	}
	return types.NamespacedName{Namespace: ro.Namespace, Name: config.Workload}, nil
}
