// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lwsdriver is the WorkloadDriver and TrafficRouter of the contract for LeaderWorkerSet.
//
//	driver, err := lwsdriver.New(config, lwsdriver.Options{Logger: log})
//	go driver.Run(ctx)
//	pb.RegisterWorkloadDriverServer(server, driver)
//	pb.RegisterTrafficRouterServer(server, driver)
//
// This package implements the RPCs only. Each workload is reconciled in a loop, and each part of the loop is a package:
// observe reads caches and never writes; plan decides, without any I/O, on at most one write; apply makes that write, with a
// precondition, and waits until the caches show it; engine runs the loop. An RPC records what the host requested and runs the
// loop. So does every change in the cluster, so a release is finished even if its host or an earlier driver no longer exists.
//
// The driver keeps no state in memory that it could not lose. A release is persisted in one annotation on the workload (see
// package record), everything else is derived. Two drivers on one workload do no harm: one of them wins each write.
package lwsdriver
