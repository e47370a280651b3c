// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// prometheusModule has Prometheus without service discovery but for files, which is most of its packages.
func prometheusModule(Versions) module {
	return module{
		name: "prometheus", version: "v0.312.0", tags: "remove_all_sd",
		programs: []program{
			{"prometheus", "github.com/prometheus/prometheus/cmd/prometheus"},
			{"promtool", "github.com/prometheus/prometheus/cmd/promtool"},
		},
	}
}

func prometheusOperatorModule(Versions) module {
	return module{
		name: "prometheusoperator", version: "v0.92.0",
		manifests: []manifests{{"github.com/prometheus-operator/prometheus-operator", []string{"example/prometheus-operator-crd"}}},
	}
}

// WithPrometheus builds Prometheus and downloads the CRDs of its operator, for a network namespace in which neither is possible.
func WithPrometheus() Option { return func(o *options) { o.prometheus = true } }

// Promtool returns the path of promtool.
func (c *Cluster) Promtool(ctx context.Context) (string, error) {
	return c.program(ctx, prometheusModule, "promtool")
}

const prometheusConfig = `
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
scrape_configs:
- job_name: models
  static_configs: [{targets: [%q]}]
`

// StartPrometheus starts Prometheus, which scrapes http://target/metrics twice a second, and returns its URL. It ends with stop.
func StartPrometheus(ctx context.Context, dir, target string) (url string, stop func(), err error) {
	o, err := newOptions(nil)
	if err != nil {
		return "", nil, err
	}
	built, err := prometheusModule(o.versions).build(ctx, o.log)
	if err != nil {
		return "", nil, err
	}
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, prometheusConfig, target), 0o600); err != nil {
		return "", nil, fmt.Errorf("configure Prometheus: %w", err)
	}
	var taken ports
	port, err := taken.take(ctx, 1)
	if err != nil {
		return "", nil, err
	}
	url = "http://" + address(port[0])
	p, err := spawn("prometheus", filepath.Join(dir, "prometheus.log"), dir, built.program("prometheus"), []string{
		"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address(port[0]),
	}, nil)
	if err != nil {
		taken.release()
		return "", nil, err
	}
	stop = func() {
		p.stop(nil)
		taken.release()
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := p.await(ctx, func(ctx context.Context) error { return answers(ctx, url+"/-/ready", http.StatusOK) }); err != nil {
		stop()
		return "", nil, err
	}
	return url, stop, nil
}

// pickerModule has the endpoint picker of the Gateway API Inference Extension, and the CRDs of its version.
func pickerModule(Versions) module {
	const extension = "sigs.k8s.io/gateway-api-inference-extension"
	return module{
		name: "inference", version: "v1.5.0",
		programs:  []program{{"epp", extension + "/cmd/epp"}},
		manifests: []manifests{{extension, []string{inferenceCRDs}}},
	}
}

// inferenceCRDs is the directory of the Inference Extension's CRDs.
const inferenceCRDs = "config/crd/bases"

// WithEndpointPicker builds the endpoint picker of the Inference Extension, for [Cluster.PushEndpointPicker], and installs the
// InferencePool of its version. It needs [WithGatewayAPI] or [WithTraefik], and [WithKubelets].
func WithEndpointPicker() Option { return func(o *options) { o.picker = true } }

// PushEndpointPicker pushes the image of the endpoint picker, and returns its reference.
func (c *Cluster) PushEndpointPicker(ctx context.Context) (string, error) {
	built, err := c.build(ctx, pickerModule)
	if err != nil {
		return "", err
	}
	return c.PushProgram(ctx, "epp:v1.5.0", built.program("epp"))
}
