// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine runs the loop of every workload: observe, plan, apply, until there is nothing to write.
//
//	e, err := engine.New(engine.Config{ /* clients and scope */ })
//	go e.Run(ctx)
//
// Every change in the cluster puts its workload into a queue, from which workers take it, so that a release is finished
// although its host or an earlier driver no longer exists. A call of a host does the same work on its own goroutine: it takes
// the workload's lock with [Engine.Lock], writes down what the host wants with [Engine.Do], and takes the release as far as
// it goes without waiting with [Engine.Reconcile]. The lock is also where an engine is kept from workloads that are not its
// business, and a read-only one from all.
//
// The engine records Kubernetes events and metrics, keeps the error that blocks each release ([Engine.LastError]), and
// diagnoses a start whose caches do not fill ([Engine.Ready]).
package engine
