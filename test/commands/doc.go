// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package commands runs the commands of the documentation on a real control plane, as a reader would: with lockstep, kubectl and Helm
// in the PATH, in the repository's root.
package commands
