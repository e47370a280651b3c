// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lwstest has the workloads, pods, routes and fake clients that the tests of lwsdriver's packages share, mostly
// for the LeaderWorkerSet [VLLM] at [Noon].
//
//	stable := lwstest.InPhase(t, record.Progressing)
//	cluster := lwstest.NewCluster(t, fake.NewClientset(), lwstest.NoRoutes(), stable, lwstest.Canary(t, stable))
package lwstest
