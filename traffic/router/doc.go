// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package router is the shell around package traffic: it runs informers.
//
// An informer starts when the first release needs it; those of the Gateway API and of its Inference Extension wait until the
// CRDs are installed.
package router
