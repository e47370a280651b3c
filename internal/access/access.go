// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package access has the one permission of Lockstep: verbs on the virtual resource releases.lockstep.dev, in the namespace of
// the workload. RBAC grants it, and the driver, the admission policies and the hosts ask for it.
package access

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
)

// The virtual resource. No API serves it: only RBAC rules and reviews name it.
const (
	Group    = "lockstep.dev"
	Resource = "releases"
)

// Verb is what a user may do with the releases of a namespace.
type Verb string

// The verbs. None includes another.
const (
	// Get reads status, plans and history.
	Get Verb = "get"
	// Drive begins, upgrades, promotes and rolls back releases, and routes their requests.
	Drive Verb = "drive"
	// Adopt adopts and disowns workloads.
	Adopt Verb = "adopt"
)

type userKey struct{}

// WithUser returns a context of a call by an authenticated user.
func WithUser(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// UserOf returns the authenticated user of a call, or nil if the call was not authenticated.
func UserOf(ctx context.Context) user.Info {
	u, _ := ctx.Value(userKey{}).(user.Info)
	return u
}

type seesKey struct{}

// WithSight returns a context of a call that may see only some namespaces.
func WithSight(ctx context.Context, sees func(ctx context.Context, namespace string) (bool, error)) context.Context {
	return context.WithValue(ctx, seesKey{}, sees)
}

// Sees reports whether a call may see the releases of a namespace.
func Sees(ctx context.Context, namespace string) (bool, error) {
	if sees, ok := ctx.Value(seesKey{}).(func(context.Context, string) (bool, error)); ok {
		return sees(ctx, namespace)
	}
	// A call without review, over a Unix socket or within this process, may see all.
	return true, nil
}

type turnKey struct{}

// WithTurn returns a context of a call that takes turns with others before it computes much or makes a large answer.
func WithTurn(ctx context.Context, turn func(context.Context) bool) context.Context {
	return context.WithValue(ctx, turnKey{}, turn)
}

// Turn reports whether a call may compute much or make a large answer, which it may wait for. It has the turn until it ends, so it first
// waits for everything else.
func Turn(ctx context.Context) bool {
	turn, ok := ctx.Value(turnKey{}).(func(context.Context) bool)
	// Without review there is one user, with whom no other takes turns.
	return !ok || turn(ctx)
}
