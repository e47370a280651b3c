// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package batchrelease has the end-to-end tests of `lockstep batchrelease`, on a real control plane with Kruise's CRD and without its
// manager, under exactly the permissions of config/kruise/batchrelease.
package batchrelease
