// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package traffic decides how a release's requests are shared between stable and canary leaders. It is pure: objects as
// they are go in, the next write comes out. Package router is its shell: it reads caches and makes the writes.
//
// # What is written on whose object
//
// The user owns the stable Service and the routes; the release borrows them and gives them back as they were.
//
//   - Stable Service: one key is added to spec.selector (the fence), and an annotation notes it. A client-side apply of
//     the user's manifest leaves both alone. For server-side apply the selector is one atomic value: without force it
//     meets a conflict, with force, or when the object is replaced, the fence is dropped and put back at once. In between
//     requests may reach ready canary leaders through the stable Service.
//   - Canary Service: generated, and owned by the stable workload, so that garbage collection takes it too.
//   - HTTPRoute and GRPCRoute: spec.rules. The API makes it an atomic list: there is no way to own one rule, or one
//     backendRef, so a write replaces the list. It does so from the list as it stands, holds only for the resourceVersion
//     that it was made from, and keeps all that it does not understand: rules are handled as JSON, not as the types of
//     one version of the API.
//
// Writes are made by field manager "lockstep". It owns the added selector key and spec.rules while the release lasts, so
// that a server-side apply of other rules meets a conflict that names it, and gives both up at the end. Argo CD leaves
// the rules alone with ignoreDifferences: [{group: gateway.networking.k8s.io, kind: HTTPRoute, managedFieldsManagers:
// [lockstep]}]; without it a release goes on too, but the two take turns in writing them.
//
// Nothing about the original rules is remembered. They can be told from the rules as they stand: the weights of a rule
// in which a canary backendRef appears are 100 times the original ones, added rules have a name of ours, and mirrors
// lead to the canary Service. So there is no memory that could be lost, be outdated by a manifest that is applied again
// in mid-release, or be undone in the wrong order by several releases that share a rule. A manifest that is applied
// again sends all requests to the stable Service, fenced and serving, until the rules are put back.
//
// The price: weights up to [MaxWeight] only, and the API server's default weight of 1 comes back spelled out (it always
// is, in a cluster).
package traffic
