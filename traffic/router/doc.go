// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package router is the shell around package traffic: it runs informers and makes one write at a time.
//
// An informer starts when the first release needs it; those of the Gateway API and of its Inference Extension wait until the
// CRDs are installed. Each write is a request with a precondition, by field manager "lockstep". It returns once the caches
// have observed it, so that the next observation is never older than the last write.
package router
