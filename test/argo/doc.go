// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package argo tests Lockstep under Argo Rollouts: the controller and the kubectl plugin are built from Argo's own module and
// unmodified, and the controller runs with the rights of its service account and config/argo, no others.
//
// Tests that end or configure the controller anew are not parallel; go test runs them before those that are.
package argo
