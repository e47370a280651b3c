// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine runs the loop of every workload: observe, plan, apply, until there is nothing to write.
//
//	e := engine.New(engine.Config{ /* clients and scope */ })
//	go e.Run(ctx)
//
// Every change in the cluster enqueues its workload for the workers, so that a release is finished even if its host or an
// earlier driver no longer exists. An RPC does the same work on its own goroutine: it takes the workload's lock with
// [Engine.Lock], records the request with [Engine.Do], and reconciles the release as far as it gets without waiting with
// [Engine.Reconcile]. The lock also refuses workloads out of the engine's scope, and a read-only engine gets none.
//
// The engine records Kubernetes events and metrics, keeps the error that blocks each release ([Engine.LastError]), and
// says why its caches do not fill ([Engine.Ready]).
package engine
