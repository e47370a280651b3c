// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host drives releases over the contract in proto/lockstep/v1alpha1, as any host would: it reaches the driver only
// through gRPC, and imports no Kubernetes.
//
// A [Host] makes one request, and decides the next one from the response. The decision is a pure function of the last
// BatchContext and of a little state of this run (machine.go, decide.go); everything durable is in the driver. So a host that was
// killed, or interrupted with Ctrl-C, continues when it is started again with the same release id and policy.
//
// Only responses to the host's own requests lead to decisions. The watch is for display, and a hint to request again: it may
// lag behind a response, and never overrides one.
package host
