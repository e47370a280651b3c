// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package podserver

// Violation is why a request should not have come to where it came, or did not end well there.
type Violation string

// The violations. Each is answered with 503.
const (
	// Unready: the pod's condition Ready is not True.
	Unready Violation = "unready"
	// GroupUnready: the leader is ready, its group is not: not all of its pods are there and ready.
	GroupUnready Violation = "group-unready"
	// Worker: the pod is a worker; only leaders serve.
	Worker Violation = "worker"
	// Gone: no pod has this address, or none any more.
	Gone Violation = "gone"
	// Cut: the pod went, or its containers ended, before the request did.
	Cut Violation = "cut"
)

// Answer is the body of every response, as JSON.
type Answer struct {
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Workload is the name of the LeaderWorkerSet.
	Workload string `json:"workload,omitempty"`
	// Revision is LWS's template revision hash.
	Revision string `json:"revision,omitempty"`
	// Role is RoleLeader or RoleWorker, or "" for a pod of something else.
	Role string `json:"role,omitempty"`
	// Group is the index of the group.
	Group string `json:"group,omitempty"`
	// Terminating: the pod was being deleted when the request came, and still served it.
	Terminating bool `json:"terminating,omitempty"`
	// Violation is "" if all is well.
	Violation Violation `json:"violation,omitempty"`
	// Detail says more about the violation.
	Detail string `json:"detail,omitempty"`
}

// Values of Answer.Role.
const (
	RoleLeader = "leader"
	RoleWorker = "worker"
)

// Count is what came to one pod.
type Count struct {
	Requests   int
	Violations map[Violation]int
}
