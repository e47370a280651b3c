// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench measures Lockstep on a real control plane on this machine, beside LeaderWorkerSet's own rolling update of
// the same workload, and prints one table. Times depend on the machine: compare only figures of one run.
//
//	go test -C test -tags e2e ./bench -run '^$' -bench 'Lockstep/^(start|release|scale|storm|fleet)$' -timeout 0 [-reps 9]
//
// docs/benchmarks.md explains each figure.
package bench
