// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package argo tests Lockstep under Argo Rollouts: the controller and the kubectl plugin are built from Argo's own module and
// unmodified, and the controller runs with the permissions of its service account and config/argo only.
//
// Tests that stop or reconfigure the controller are not parallel; go test runs them before the parallel ones.
package argo
