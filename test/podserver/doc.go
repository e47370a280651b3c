// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podserver is the server of every pod of a test cluster, whose pods have no containers: one process that listens on
// 0.0.0.0 in a network namespace where all pod addresses are local (package netns).
//
// It finds the pod by the address that the request came to and answers as that pod would: who it is, if the pod is a leader that
// can serve with its whole group, and 503 with the reason if a server there could not have answered. What a broken set-up does
// to requests is thereby what it would do to real ones.
package podserver
