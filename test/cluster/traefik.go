// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The Gateway of a cluster that was started [WithTraefik]. Routes of any namespace refer to it in parentRefs, with its namespace. Its
// only listener is for HTTP.
const (
	GatewayNamespace = "gateway-system"
	GatewayName      = "gateway"
	GatewayListener  = "web"
	GatewayClassName = "traefik"
)

// gatewayController is Traefik's name in GatewayClasses and in the status of routes.
const gatewayController = "traefik.io/gateway-controller"

// readyPath is redirected by Traefik itself once it has read its routes.
const readyPath = "/.well-known/lockstep-gateway-ready"

// configurationDelay is how long Traefik collects changes before they take effect. Its default is 2 s, which would only slow tests
// down.
const configurationDelay = 100 * time.Millisecond

// GatewayAddress returns host and port of the Gateway's listener, on the loopback of the cluster's network namespace, or "" without
// [WithTraefik].
func (c *Cluster) GatewayAddress() string {
	if !c.options.traefik {
		return ""
	}
	return address(c.port.gateway)
}

var gatewayResource = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}

var traefikComponent = component{
	name: Traefik, module: traefikModule, program: "traefik",
	install: func(ctx context.Context, c *Cluster) error {
		return c.Apply(ctx, "", fmt.Appendf(nil, gatewayManifest,
			GatewayNamespace, GatewayClassName, gatewayController, GatewayName, GatewayListener, c.port.gateway, readyPath))
	},
	command: traefikCommand,
	ready:   traefikReady,
}

const gatewayManifest = `apiVersion: v1
kind: Namespace
metadata: {name: %[1]q}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: %[2]q}
spec: {controllerName: %[3]q}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %[4]q, namespace: %[1]q}
spec:
  gatewayClassName: %[2]q
  listeners:
  - {name: %[5]q, protocol: HTTP, port: %[6]d, allowedRoutes: {namespaces: {from: All}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: ready, namespace: %[1]q}
spec:
  parentRefs: [{name: %[4]q}]
  rules:
  - matches: [{path: {type: Exact, value: %[7]q}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: ready.invalid}}]
`

func traefikCommand(c *Cluster) (command, error) {
	args := slices.Concat([]string{
		"--global.checknewversion=false", "--global.sendanonymoususage=false",
		"--log.level=INFO", "--log.nocolor=true",
		"--entrypoints." + GatewayListener + ".address=" + address(c.port.gateway),
		"--entrypoints." + GatewayListener + ".transport.lifecycle.gracetimeout=2s",
		"--providers.providersthrottleduration=" + configurationDelay.String(),
		"--providers.kubernetesgateway=true",
		"--providers.kubernetesgateway.statusaddress.ip=127.0.0.1",
	}, c.options.traefikArgs)
	return command{
		args: args,
		// If the tests run in a pod, Traefik would use that pod's cluster.
		env: []string{"KUBECONFIG=" + c.path(Traefik+".kubeconfig"), "KUBERNETES_SERVICE_HOST="},
	}, nil
}

// traefikReady sends a request that Traefik redirects once it has its routes; the Gateway's status may be of an earlier run.
func traefikReady(ctx context.Context, c *Cluster) error {
	if err := c.gatewayProgrammed(ctx); err != nil {
		return err
	}
	return answers(ctx, "http://"+c.GatewayAddress()+readyPath, http.StatusFound)
}

// gatewayProgrammed returns nil if the Gateway is programmed.
func (c *Cluster) gatewayProgrammed(ctx context.Context) error {
	gateway, err := c.applier.client.Resource(gatewayResource).Namespace(GatewayNamespace).Get(ctx, GatewayName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(gateway.Object, "status", "conditions")
	for _, condition := range conditions {
		if fields, ok := condition.(map[string]any); ok && fields["type"] == "Programmed" && fields["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("gateway %s is not programmed: conditions %v", GatewayName, conditions)
}
