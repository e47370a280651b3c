// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package picture draws releases as SVG: groups as rows over time, the revision as colour, and below them the capacity and
// the share of requests. It does no I/O.
//
//	svg := picture.Plan("vllm: Canary release", response) // of a PlanResponse with frames
package picture
