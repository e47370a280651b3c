// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package router is the shell around package traffic: it fills caches, and makes one write at a time.
//
// Caches are filled once the first release that needs them asks, and those of the Gateway API and of its Inference
// Extension only where they are installed. Each write is a request with a precondition, by field manager "lockstep", and
// returns once the caches have seen it, so that the next look is never older than the last write.
package router
