// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// RolloutTarget represents one LeaderWorkerSet as a StatefulSet whose pods are whole groups, or one DisaggregatedSet, whose pods are
// units. A Kruise Rollout that refers to it releases the workload. The user sets workloadRef, `lockstep kruise` copies the rest from the
// workload, and Kruise sets updateStrategy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rt
// +kubebuilder:printcolumn:name="Workload",type=string,JSONPath=`.spec.workloadRef.name`
// +kubebuilder:printcolumn:name="Groups",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.updatedReplicas`
// +kubebuilder:printcolumn:name="Updated-Ready",type=integer,JSONPath=`.status.updatedReadyReplicas`
// +kubebuilder:printcolumn:name="Partition",type=integer,JSONPath=`.spec.updateStrategy.rollingUpdate.partition`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type RolloutTarget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RolloutTargetSpec   `json:"spec"`
	Status RolloutTargetStatus `json:"status,omitempty"`
}

// RolloutTargetList is a list of RolloutTargets.
//
// +kubebuilder:object:root=true
type RolloutTargetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RolloutTarget `json:"items"`
}

// RolloutTargetSpec names the workload and what Kruise's Rollout can't say about its releases. The other fields are those of a
// StatefulSet.
type RolloutTargetSpec struct {
	// WorkloadRef names the workload. Required, and never changes.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="workloadRef can't be changed: create another RolloutTarget"
	WorkloadRef WorkloadReference `json:"workloadRef"`
	// MinReadySeconds is how long a group must have been ready before it counts in updatedReadyReplicas of a release. Read when a
	// release starts. Default: 0.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// ProgressDeadlineSeconds is the time without a new ready group after which a release is Failed. Read when a release starts.
	// Default: 1800.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	// OnDeletion is how a release in progress ends when this target is deleted. The workload is disowned afterwards, unless its
	// template is not the one that its groups run: then it stays under hold.
	//
	// +optional
	// +kubebuilder:default=Rollback
	OnDeletion OnDeletion `json:"onDeletion,omitempty"`
	// Replicas is the number of groups. Filled in: scale the workload itself.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`
	// Selector selects the leader pods. Filled in.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Template changes whenever the workload's template does. Filled in.
	//
	// +optional
	Template *Template `json:"template,omitempty"`
	// UpdateStrategy sets how many groups are not updated. Set by Kruise.
	//
	// +optional
	UpdateStrategy *UpdateStrategy `json:"updateStrategy,omitempty"`
}

// OnDeletion is how a release in progress ends when its target is deleted.
//
// +kubebuilder:validation:Enum=Rollback;Promote
type OnDeletion string

const (
	// OnDeletionRollback returns the updated groups to the stable revision. It is the default.
	OnDeletionRollback OnDeletion = "Rollback"
	// OnDeletionPromote updates the remaining groups.
	OnDeletionPromote OnDeletion = "Promote"
)

// WorkloadReference names a LeaderWorkerSet or a DisaggregatedSet in the same namespace.
type WorkloadReference struct {
	// Kind of the workload. Default: LeaderWorkerSet.
	//
	// +optional
	// +kubebuilder:validation:Enum=LeaderWorkerSet;DisaggregatedSet
	Kind string `json:"kind,omitempty"`
	// Name of the workload. Required.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// Template represents the workload's templates where Kruise expects a pod template.
type Template struct {
	// Metadata of the template.
	//
	// +optional
	Metadata TemplateMetadata `json:"metadata,omitempty"`
}

// TemplateMetadata has the annotation that identifies a template.
type TemplateMetadata struct {
	// Annotations has lockstep.dev/template-revision: LWS's revision of the template.
	//
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// UpdateStrategy is that of a StatefulSet.
type UpdateStrategy struct {
	// Type is RollingUpdate.
	//
	// +optional
	// +kubebuilder:validation:Enum=RollingUpdate
	Type string `json:"type,omitempty"`
	// RollingUpdate limits an update.
	//
	// +optional
	RollingUpdate *RollingUpdate `json:"rollingUpdate,omitempty"`
}

// RollingUpdate limits an update.
type RollingUpdate struct {
	// Partition is the number of groups that keep their revision: those with the lowest indices. 32767 is Kruise's hold.
	// Unset: every group is updated, and the release ends.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32767
	Partition *int32 `json:"partition,omitempty"`
	// Paused is true while no further group may be updated.
	//
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// RolloutTargetStatus counts groups where a StatefulSet counts pods.
type RolloutTargetStatus struct {
	// ObservedGeneration is the generation of the spec to which the rest of the status belongs.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Replicas is the number of groups that exist, ready or not.
	//
	// +optional
	Replicas int32 `json:"replicas"`
	// ReadyReplicas is the number of groups whose leader and workers are all ready, at one revision.
	//
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// AvailableReplicas is ReadyReplicas.
	//
	// +optional
	AvailableReplicas int32 `json:"availableReplicas"`
	// UpdatedReplicas is the number of groups at the template's revision.
	//
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// UpdatedReadyReplicas is the number of ready groups at the template's revision.
	//
	// +optional
	UpdatedReadyReplicas int32 `json:"updatedReadyReplicas"`
	// CurrentRevision is the revision before the release, as the label controller-revision-hash of its leader pods.
	//
	// +optional
	CurrentRevision string `json:"currentRevision,omitempty"`
	// UpdateRevision is the template's revision, as the label controller-revision-hash of its leader pods.
	//
	// +optional
	UpdateRevision string `json:"updateRevision,omitempty"`
	// State is the driver's state of the release, for example Holding, Upgrading, Ready, Promoting or Failed.
	//
	// +optional
	State string `json:"state,omitempty"`
	// Conditions has Ready: whether the workload is under hold and follows this target, and if not, why.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GroupVersion is the API group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "lockstep.dev", Version: "v1alpha1"}

// AddToScheme adds this package's kinds to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &RolloutTarget{}, &RolloutTargetList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
