// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package load sends requests through a gateway without a break, phase by phase, and says for each phase what became of them:
// how many failed and why, which share went to which side of a release, how long it took until the share was the wanted one,
// and what went where nothing should. The answers are those of package podserver.
//
//	g := load.Start(ctx, load.Options{URL: "http://" + c.GatewayAddress(), Host: "vllm.test", Rate: 1000})
//	g.Begin(load.Phase{Name: "canary 10 %", Want: load.Shares{"vllm": 90, "vllm-abc": 10}})
//	setWeight(10)
//	err := g.Await(ctx, 2000)  // until the share is true, and for 2000 requests more
//	...
//	report := g.End()
//	report.Write(os.Stdout)
//	for _, problem := range report.Problems() { t.Error(problem) }
//
// The load is bounded in count and time and ends by itself. No request is tried twice.
package load
