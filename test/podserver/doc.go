// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podserver serves for all pods of a test cluster, whose pods have no containers. One process listens on 0.0.0.0 in a network
// namespace where all pod addresses are local (package netns).
//
// It finds the pod by the request's local address. It returns the pod's identity if the pod is a leader whose whole group is ready,
// and otherwise 503 with the reason. So requests fail as they would with real pods.
//
//	pods, err := podserver.Start(ctx, c.RESTConfig())
//	defer pods.Stop()
package podserver
