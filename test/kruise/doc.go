// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kruise tests Kruise Rollouts, unmodified and with its webhooks, on RolloutTargets.
package kruise
