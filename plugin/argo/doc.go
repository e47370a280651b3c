// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package argo lets Argo Rollouts release LeaderWorkerSets and DisaggregatedSets: it is Argo's step plugin and its traffic-router plugin,
// as a host of the driver's contract.
//
// # Configuration
//
// A Rollout says which workload it releases and how under its traffic routing, and each step says what it does:
//
//	spec:
//	  replicas: 0                             # no placeholder pods
//	  progressDeadlineSeconds: 2147483647     # the release has its own deadline
//	  strategy:
//	    canary:
//	      trafficRouting:
//	        plugins:
//	          lockstep/lws:
//	            workload: vllm                # required: the LeaderWorkerSet, in the Rollout's namespace, or
//	                                          # {kind: DisaggregatedSet, name: llm}
//	            style: Canary                 # Canary (default), BlueGreen or Partition
//	            traffic:                      # optional: without it, shares follow group counts
//	              stableService: vllm-leader  # required within traffic; not the Service that LWS makes
//	              canaryService: vllm-leader-canary # default: the stable Service's name with -canary
//	              httpRoutes: [vllm]
//	              grpcRoutes: []
//	              ingresses: []
//	              inferencePool: {name: vllm, canaryEndpointPicker: vllm-canary-epp, canaryEndpointPickerPort: 9002}
//	              drain: {period: 10s, metric: "vllm:num_requests_running", metricEndpoint: ":8000/metrics", timeout: 5m}
//	              warmUp: {endpoint: ":8000/health", body: "", timeout: 30s}
//	                                          # both ask leaders of more roles of a DisaggregatedSet with, e.g., roles: [decode]
//	            batches: [25%, 100%]          # default: the `upgrade` of each step
//	            failureThreshold: 0           # groups, or a percentage of the batch
//	            progressDeadline: 30m         # time without a new ready group
//	            minReady: 0s
//	            canaryLeaderMetadata: {labels: {}, annotations: {}}
//	            rolloutId: ""                 # a label of the updated pods
//	            blueGreen: {promotion: InPlace, scaleDownDelay: 0s, force: false} # only with style BlueGreen
//	            roleOrder: [decode]           # roles of a DisaggregatedSet that a promotion removes last
//	            onFailure: Abort              # Abort: a release that fails aborts the Rollout; Wait: it waits for a user
//	      steps:
//	      - plugin: {name: lockstep/lws, config: {upgrade: 25%, weight: 25}}
//	      - pause: {}
//	      - plugin: {name: lockstep/lws, config: {upgrade: 100%, weight: 100}}
//	      - plugin: {name: lockstep/lws, config: {promote: true}}
//
// A step takes `upgrade` (groups: 2 or 25%), `weight` (0 to 100), `headers` (a list of names with exact, regex or cookie;
// an empty list removes the route), `mirror` (0 to 100) and `promote` (true), in any combination; they are done in this
// order. Argo's setWeight, setHeaderRoute and setMirrorRoute steps route requests, too. With a field by which Argo would act on its
// own pods and Services no release begins.
//
// # Plugins
//
// In Argo's ConfigMap argo-rollouts-config both `stepPlugins` and `trafficRouterPlugins` have an entry with the name
// lockstep/lws ([PluginName]) and the same binary. Its `args` are flags:
//
//	--driver ADDRESS              unix:///path, host:port or dns:///host:port of a `lockstep serve`
//	                              (default: a driver inside the plugin's process)
//	--tls-cert, --tls-key, --tls-ca
//	                              with --driver: PEM files for mutual TLS
//	--step-waits N                steps that wait inside the controller at once (default 5, half of its workers)
//	--instance-id ID              that of Argo's controller, whose Rollouts count (default: those without an instance)
//	--kubeconfig, --context, --namespace, --log-level
//	                              as for every command; none is needed in the controller's pod
//
// # How it works
//
// Pure functions of the Rollout, the configuration and the driver's BatchContext decide the next call, and what the plugin
// returns to Argo. No decision needs state of the process: both plugins, a second controller and a restarted one decide the
// same, and the driver's writes carry preconditions.
//
// The [Controller] watches Rollouts beside the plugins' calls. It holds the workload of each from the moment both exist,
// starts a Rollout when its workload is edited, and rolls back and disowns after a Rollout is deleted.
package argo
