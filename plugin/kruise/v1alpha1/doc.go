// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API group lockstep.dev/v1alpha1: RolloutTarget, through which Kruise Rollouts releases a
// LeaderWorkerSet.
//
// +kubebuilder:object:generate=true
// +groupName=lockstep.dev
package v1alpha1
