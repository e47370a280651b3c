// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package load sends continuous requests through a gateway, and reports for each phase how many failed and why, the share of each
// side of a release, the time until the share was the wanted one, and requests to the wrong side. The pods are those of package
// podserver.
//
//	g := load.Start(ctx, load.Options{URL: "http://" + c.GatewayAddress(), Host: "vllm.test", Rate: 1000})
//	g.Begin(load.Phase{Name: "canary 10 %", Want: load.Shares{"vllm": 90, "vllm-abc": 10}})
//	setWeight(10)
//	err := g.Await(ctx, 2000)  // until the share is as wanted, and for 2000 requests more
//	...
//	report := g.End()
//	report.Write(os.Stdout)
//	for _, problem := range report.Problems() { t.Error(problem) }
//
// The load is bounded in count and time. No request is retried.
package load
