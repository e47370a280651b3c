// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package record defines what Lockstep persists in the cluster: the release record on the workload, the policy of the
// release, the target of its last batch, the hold, and the names of all objects, labels and annotations. It also has the
// arithmetic of batches. All of it is values; the package does no I/O.
//
// [DecodeRecord] reads the annotation [RecordAnnotation] strictly, and [Record.Encode] writes it. [ParsePolicy] validates
// a policy of the contract and returns it as a [Policy]. [Hold] is the rolling update configuration of a workload at
// rest.
package record
