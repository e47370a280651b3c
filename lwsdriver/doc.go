// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lwsdriver is the WorkloadDriver and TrafficRouter of the contract for LeaderWorkerSet.
//
//	driver, err := lwsdriver.New(config, lwsdriver.WithLogger(log))
//	go driver.Run(ctx)
//	pb.RegisterWorkloadDriverServer(server, driver)
//	pb.RegisterTrafficRouterServer(server, driver)
//
// This package has the RPCs only. Work on a workload is a loop, and each part of it is a package: observe reads caches and
// never writes; plan decides, without any I/O, on at most one write; apply makes that write, with a precondition, and waits
// until the caches show it; engine runs the loop. An RPC records what the host wants and runs the loop, and so does every
// change in the cluster, which is how a release is finished although its host or an earlier driver no longer exists.
//
// The driver remembers nothing that it could not lose: what a release is stands in one annotation on the workload
// (see package record), all else is derived. Two drivers on one workload do no harm; one of them wins each write.
package lwsdriver
