// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostile attacks the built driver as its callers could, with and without credentials, while an administrator calls it and a
// release runs on a real control plane. The driver has the memory of the shipped Deployment. LOCKSTEP_TEST_ATTACK=5m makes each attack
// last longer than the default of ten seconds.
package hostile
