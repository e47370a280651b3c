// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podanswer has the answers of pods in tests: who answered, and why a pod does not serve.
package podanswer

// Violation is why a pod does not serve a request.
type Violation string

// Violations. The response is 503.
const (
	// Unready means that the pod's condition Ready is not True.
	Unready Violation = "unready"
	// GroupUnready means that the leader is ready, but not all pods of its group exist and are ready.
	GroupUnready Violation = "group-unready"
	// Worker means that the pod is a worker, which does not serve.
	Worker Violation = "worker"
	// Gone means that no pod has this address.
	Gone Violation = "gone"
	// Cut means that the pod was deleted, or its containers ended, before the request completed.
	Cut Violation = "cut"
	// Unpaired means that no pod of another role at the same revision of the DisaggregatedSet answered.
	Unpaired Violation = "unpaired"
)

// Answer is the body of every response, as JSON.
type Answer struct {
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Workload is the name of the LeaderWorkerSet.
	Workload string `json:"workload,omitempty"`
	// Revision is LWS's template revision hash.
	Revision string `json:"revision,omitempty"`
	// SetRevision is the revision of the DisaggregatedSet, "" for a pod of none.
	SetRevision string `json:"setRevision,omitempty"`
	// Partner is the answer of the pod that this one has called. Nil if it called none.
	Partner *Answer `json:"partner,omitempty"`
	// Role is RoleLeader or RoleWorker, or "" for a pod of no group.
	Role string `json:"role,omitempty"`
	// Group is the index of the group.
	Group string `json:"group,omitempty"`
	// Terminating is true if the pod was being deleted, and still served the request.
	Terminating bool `json:"terminating,omitempty"`
	// Violation is "" if the pod serves.
	Violation Violation `json:"violation,omitempty"`
	// Detail describes the violation.
	Detail string `json:"detail,omitempty"`
}

// Pods with containers stream the completion in the body, which ends with the event Done, and have the Answer, as JSON, in the header Header.
const (
	Header = "X-Lockstep-Answer"
	Done   = "[DONE]"
)

// Values of Answer.Role.
const (
	RoleLeader = "leader"
	RoleWorker = "worker"
)

// Port is the port on which pods serve.
const Port = 8080
