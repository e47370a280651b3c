// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RolloutTarget makes one LeaderWorkerSet look like a StatefulSet, whose pods are whole groups. A Rollout of Kruise that
// refers to it releases the LeaderWorkerSet. The user writes workloadRef; `lockstep kruise` fills in the rest and
// keeps it as the LeaderWorkerSet is; Kruise writes updateStrategy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
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

// RolloutTargetSpec names the workload, and is beyond that what a StatefulSet's spec would be.
type RolloutTargetSpec struct {
	// WorkloadRef names the LeaderWorkerSet. Required, and never changes.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="workloadRef can't be changed: make another RolloutTarget"
	WorkloadRef WorkloadReference `json:"workloadRef"`
	// Replicas is the number of groups. Filled in; a value that somebody else writes, as through the scale
	// subresource, is forwarded to the LeaderWorkerSet.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`
	// Selector selects the leader pods. Filled in.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Template changes whenever the LeaderWorkerSet's template does. Filled in.
	//
	// +optional
	Template *Template `json:"template,omitempty"`
	// UpdateStrategy says how many groups are to stay as they are. Kruise writes it.
	//
	// +optional
	UpdateStrategy *UpdateStrategy `json:"updateStrategy,omitempty"`
}

// WorkloadReference names a LeaderWorkerSet in the same namespace.
type WorkloadReference struct {
	// Name of the LeaderWorkerSet. Required.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
}

// Template stands for the LeaderWorkerSet's templates where Kruise looks for a pod template.
type Template struct {
	// Metadata of the template.
	//
	// +optional
	Metadata TemplateMetadata `json:"metadata,omitempty"`
}

// TemplateMetadata has the one annotation that tells templates apart.
type TemplateMetadata struct {
	// Annotations has lockstep.dev/template-revision: the revision that LeaderWorkerSet gave the template.
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
	// RollingUpdate is how far an update goes.
	//
	// +optional
	RollingUpdate *RollingUpdate `json:"rollingUpdate,omitempty"`
}

// RollingUpdate is how far an update goes.
type RollingUpdate struct {
	// Partition is the number of groups that stay at their revision: those of the lowest indices. 32767 is Kruise's hold.
	// Unset: every group is updated, and the release is over then.
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
	// ObservedGeneration is the generation of the spec that the rest of the status follows.
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
	// UpdatedReadyReplicas is the number of those that are ready.
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
	// Selector selects the leader pods, for the scale subresource.
	//
	// +optional
	Selector string `json:"selector,omitempty"`
	// WorkloadReplicas is the number of groups that the LeaderWorkerSet wanted last. What spec.replicas says beyond that was
	// written by somebody who wants to scale.
	//
	// +optional
	WorkloadReplicas *int32 `json:"workloadReplicas,omitempty"`
	// State is the driver's state of the release, for example Holding, Upgrading, Ready, Promoting or Failed.
	//
	// +optional
	State string `json:"state,omitempty"`
	// Conditions has Ready: whether the LeaderWorkerSet is held and follows this target, and if not, why.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
