// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install tests what users install Lockstep with, kustomize and Helm, by real kubectl and Helm on a real control plane. The
// package test/node runs what the chart renders on a real node.
package install
