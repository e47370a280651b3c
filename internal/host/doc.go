// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host drives releases over the contract in proto/lockstep/v1alpha1, as any host would: it knows the driver
// only through gRPC and imports no Kubernetes.
//
// A [Host] asks for one thing, looks at the answer and decides what to ask next. The decision is a pure function of the
// last BatchContext and of what little it remembers of this run (machine.go, decide.go); everything durable is in the driver. So a
// host that was killed, or paused with Ctrl-C, goes on when it is started again with the same release id and policy.
//
// Decisions are made only from answers to the host's own requests. The watch stream is for people to look at, and a
// hint that it is time to ask again: it may lag behind an answer, it never overrules one.
package host
