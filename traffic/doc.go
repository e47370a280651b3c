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
//   - Stable InferencePool, if the policy names one: the same key and note. Its labels are a map, so that no apply of the
//     user's manifest takes the key away or meets a conflict; only a replacement does, and is repaired.
//   - Canary Service, InferencePool and Ingresses: generated, and owned by the stable workload, so that garbage collection
//     takes them too. The Service is there with a pool as well: a pool has no EndpointSlices to tell who is ready.
//   - Ingress: the user's is never written.
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
// # InferencePools
//
// With a pool in the policy, rules are split between backendRefs to pools; refs to the stable Service in the same routes
// stay with it, and it is fenced too. An endpoint picker serves one pool, so that the canary pool needs one of its own:
// the user deploys it beforehand, told to serve pool "<pool>-canary" (--pool-name for the Inference Extension's own), and
// names its Service in the policy. It becomes ready once the canary pool is there; no request goes to the canary before.
// A gateway speaks of a pool only while a route leads there. So a View is verified once each gateway that the routes name
// has accepted the pools in use as they are, but that can't be known before the first share.
//
// # Ingresses
//
// Ingress has no weights. There is a convention of annotations ([IngressPrefix]) on a second Ingress with the same hosts and
// paths: canary-weight in percent, and one header by value or by expression. It is there only while the canary has a share.
// The convention holds one canary for a path, so that workloads that share an Ingress take turns; it has no mirror and no
// second header, which [Supported] says. ingress-nginx keeps sessions with its cookie affinity on the side that they are
// on, whatever the weight, unless the user's Ingress has affinity-canary-behavior: legacy.
//
// An Ingress controller does not acknowledge what it was told: an Ingress has no observed generation and no conditions. A
// View is verified there as soon as the objects are as they should be and have endpoints, which is some moments before the
// controller follows. Give a drain period in the policy, so that groups outlive those moments.
//
// # Limits of routes
//
// The price of not remembering: weights up to [MaxWeight] only, and the API server's default weight of 1 comes back spelled out (it always
// is, in a cluster).
package traffic
