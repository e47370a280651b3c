// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node has releases of real containers: kubelets, containerd and runc run model servers (package modelserver), and requests
// reach them through a gateway. `make e2e SUITE=node` runs it.
package node
