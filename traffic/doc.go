// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package traffic decides how a release's requests are split between stable and canary leaders. The package
// does no I/O. [Next] returns the next write that brings the observed objects ([World]) to the [Desired] state. [Look] compares
// the two and returns a [View]. Package router does the I/O: it reads the caches and issues the writes.
//
// # Which objects are written
//
// The user owns the stable Service and the routes; a release changes them and restores them at its end.
//
//   - Stable Service: one key is added to spec.selector (the isolation), and an annotation lists it. A client-side apply of
//     the user's manifest keeps both. For server-side apply the selector is one atomic value: without force it conflicts;
//     with force, or when the object is replaced, the isolation is lost and restored at once. In between, the stable Service
//     may send requests to ready canary leaders.
//   - Stable InferencePool, if the policy names one: the same key and annotation. Its labels are a map, so an apply of the
//     user's manifest neither removes the key nor conflicts; only a replacement removes it, and is repaired.
//   - Canary Service, InferencePool and Ingresses: generated and owned by the stable workload, so that garbage collection
//     deletes them too. The Service is needed with a pool as well: a pool has no EndpointSlices that show who is ready.
//   - Ingress: the user's is never written.
//   - HTTPRoute and GRPCRoute: spec.rules. The API defines it as an atomic list: one rule or one backendRef can't be owned,
//     so a write replaces the list. It is computed from the present list and has its resourceVersion as precondition.
//     Rules are handled as JSON, not as the types of one API version, so that unknown fields are kept. While a rule is split
//     or mirrored, an annotation lists the canary.
//
// The field manager of all writes is "lockstep". During a release it owns the added selector key and spec.rules, so that a
// server-side apply of other rules gets a conflict that names it; at the end it relinquishes both. Argo CD ignores the rules
// with ignoreDifferences: [{group: gateway.networking.k8s.io, kind: HTTPRoute, managedFieldsManagers: [lockstep]}]; without
// it a release works too, but the two overwrite each other's rules.
//
// The original rules are not stored. They can be derived from the current rules: the weights of a rule with a canary
// backendRef are 100 times the original ones, added rules have names with Lockstep's prefix, and mirrors lead to the canary
// Service. Releases that share a rule have one scale: a release that finds the canary of another one in it, by
// [CanariesAnnotation], neither multiplies nor divides the weights. Without the annotation, proportions are still exact. So no stored state can be lost, be outdated by a manifest that is applied during the release, or be restored in the
// wrong order by several releases that share a rule. If a manifest is applied during a release, all requests go to the
// stable Service until the rules are restored. The Service keeps serving, and its isolation still excludes canary leaders.
//
// # InferencePools
//
// With a pool in the policy, rules are split between backendRefs to pools; refs to the stable Service in the same routes
// are not split, and the Service is isolated too. An endpoint picker serves one pool, so the canary pool needs its own: the
// user deploys it beforehand, configured to serve pool "<pool>-canary" (--pool-name for the Inference Extension's picker),
// and names its Service in the policy. It becomes ready once the canary pool exists; before that, no request is routed to
// the canary. A gateway reports on a pool only while a route leads to it. So a View is Verified once each gateway of the
// routes has accepted the pools in use, which can't be known before the canary has a share.
//
// # Ingresses
//
// Ingress has no weights. By a convention of annotations ([IngressPrefix]), a second Ingress with the same hosts and paths is
// a canary, with canary-weight in percent. It exists only while the canary has a share.
// The convention supports one canary per path, so that workloads that share an Ingress take turns. It has no mirror, and its
// headers are not used, see [Supported]. ingress-nginx keeps sessions with its cookie affinity on their side, whatever the weight,
// unless the user's Ingress has affinity-canary-behavior: legacy.
//
// An Ingress controller does not acknowledge changes: an Ingress has no observed generation and no conditions. For an
// Ingress, a View is therefore Verified once the objects match the desired state and have endpoints, possibly before the
// controller has applied the change. Set a drain period longer than this delay, so that groups are not deleted while the
// controller still routes to them.
//
// # Limits of routes
//
// Since original weights are derived, they are limited to [MaxWeight], and a restored rule has an explicit weight
// of 1 where the manifest omitted it. The API server sets the same default.
package traffic
