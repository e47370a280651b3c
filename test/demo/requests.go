// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
)

const (
	// hostname is that of the route.
	hostname = "vllm.example"
	// rate is the number of requests per second; one in longEvery takes longFor, like a long completion.
	rate      = 50
	longEvery = 50
	longFor   = time.Second
	// recent is the number of requests that the share is computed of.
	recent = 200
)

// route has the user's Service, which selects the workload's leaders, and route. LWS creates a Service with the workload's own name
// for connections between pods.
const route = `
apiVersion: v1
kind: Service
metadata: {name: %[1]s-leader}
spec:
  selector: {app: vllm, role: leader}
  ports: [{name: http, port: 80, targetPort: %[2]d}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %[1]s}
spec:
  parentRefs: [{name: %[3]s, namespace: %[4]s}]
  hostnames: [%[5]s]
  rules: [{backendRefs: [{name: %[1]s-leader, port: 80}]}]
`

// graceful makes the workload's pods serve for a while after their deletion, which a workload needs to lose no requests: gateways
// have to observe the deletion, and requests in flight have to complete.
func graceful(manifest []byte) []byte {
	return bytes.ReplaceAll(manifest, []byte("annotations: {"),
		fmt.Appendf(nil, "annotations: {%s: %s, ", cluster.AnnotationTermination, longFor+time.Second))
}

// requests are the load, and the server of pods without containers. Nil on a node.
type requests struct {
	pods *podserver.Server
	load *load.Generator
}

// open starts the requests.
func (s *stage) open(ctx context.Context) error {
	manifest := fmt.Appendf(nil, route, name, podserver.Port, cluster.GatewayName, cluster.GatewayNamespace, hostname)
	if err := s.cluster.Apply(ctx, s.namespace, manifest); err != nil {
		return err
	}
	s.requests = &requests{}
	options := load.Options{
		URL: "http://" + s.cluster.GatewayAddress() + "/v1/completions", Host: hostname, Rate: rate,
		// While LWS replaces groups in place, one workload has both revisions.
		Side: func(a podanswer.Answer) string { return a.Workload + "@" + a.Revision },
	}
	if s.script.node {
		options.Stream = longFor
	} else {
		options.LongEvery, options.LongFor = longEvery, longFor
		pods, err := podserver.Start(ctx, s.cluster.RESTConfig())
		if err != nil {
			return fmt.Errorf("serve for the pods: %w", err)
		}
		s.requests.pods = pods
	}
	if err := served(ctx, options); err != nil {
		return err
	}
	s.requests.load = load.Start(ctx, options)
	if err := s.requests.load.Await(ctx, 2*rate); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "http://%s/v1/completions\n%s\n", hostname, s.requests)
	return nil
}

// served waits until the gateway serves the route.
func served(ctx context.Context, options load.Options) error {
	options.Requests = 1
	var problems []string
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		g := load.Start(ctx, options)
		err := g.Await(ctx, 1)
		problems = g.End().Problems()
		return err == nil && len(problems) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the gateway to serve %s: %w: %s", hostname, err, strings.Join(problems, ", "))
	}
	return nil
}

// String returns the shares of the last requests in this phase, and the number of all failed requests.
func (r *requests) String() string {
	shares := r.load.Share(recent)
	sides := make([]string, 0, len(shares))
	for _, side := range slices.Sorted(maps.Keys(shares)) {
		sides = append(sides, fmt.Sprintf("%s %.0f%%", side, shares[side]))
	}
	if len(sides) == 0 {
		sides = []string{"none yet"}
	}
	all, failed := r.load.Totals()
	return fmt.Sprintf("Requests  %d of %d failed; of the last %d: %s", failed, all, recent, strings.Join(sides, ", "))
}

// phase starts another row of the table.
func (r *requests) phase(title string) {
	title, _, _ = strings.Cut(title, ":")
	r.load.Begin(load.Phase{Name: title})
}

// reportRequests ends the load and writes the table.
func (s *stage) reportRequests(context.Context) error {
	report := s.requests.load.End()
	report.Write(s.out)
	if all, failed := report.Totals(); failed > 0 {
		return fmt.Errorf("%d of %d requests failed", failed, all)
	}
	return nil
}

// close ends the load, then the pods. It does nothing without traffic.
func (r *requests) close() {
	if r == nil {
		return
	}
	if r.load != nil {
		r.load.End()
	}
	if r.pods != nil {
		_ = r.pods.Stop()
	}
}
