// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// DefaultWarmUpTimeout is the default timeout of a warm-up request.
	DefaultWarmUpTimeout = 30 * time.Second
	// DefaultDrainTimeout is the default timeout of a drain with a metric.
	DefaultDrainTimeout = 5 * time.Minute
	// MaxWarmUpTimeout is the maximum timeout of a warm-up request.
	MaxWarmUpTimeout = time.Hour
	// MaxDrain is the maximum of a drain's period and timeout together.
	MaxDrain = 24 * time.Hour
)

// Endpoint is an HTTP endpoint of a leader.
type Endpoint struct {
	// Port is never 0 in an Endpoint that was parsed.
	Port uint16
	// Path begins with "/" and may have a query.
	Path string
}

// String returns port and path as in a policy, for example ":8000/health". The query is left out: it may be secret.
func (e Endpoint) String() string {
	path, _, _ := strings.Cut(e.Path, "?")
	return fmt.Sprintf(":%d%s", e.Port, path)
}

// WarmUp is a valid WarmUpPolicy. The zero value means no warm-up.
type WarmUp struct {
	// Endpoint is the endpoint to request.
	Endpoint Endpoint
	// Body is sent as JSON with a POST. Empty means that the request is a GET.
	Body string
	// Timeout bounds the whole request. Zero means [DefaultWarmUpTimeout].
	Timeout time.Duration
}

// Drain is a valid DrainPolicy. The zero value means no drain.
type Drain struct {
	// Period is the minimum duration of the drain.
	Period time.Duration
	// Metric must be 0 on every leader after the period. Empty means that the drain ends with the period.
	Metric string
	// Endpoint serves the metric.
	Endpoint Endpoint
	// Timeout bounds the wait for the metric, from the end of the period. Zero means [DefaultDrainTimeout].
	Timeout time.Duration
}

// ParseWarmUp validates a policy, which may be nil. The WarmUp must not be used if there are violations.
func ParseWarmUp(p *pb.WarmUpPolicy) (WarmUp, []drivererr.FieldViolation) {
	if p == nil {
		return WarmUp{}, nil
	}
	v := &violations{drivererr.Fields{Path: "policy.traffic.warm_up"}}
	if p.GetEndpoint() == "" {
		v.Add("endpoint", "is required: a port and a path, for example \":8000/health\"")
	}
	return WarmUp{
		Endpoint: v.endpoint("endpoint", p.GetEndpoint()),
		Body:     p.GetBody(),
		Timeout:  v.Duration("timeout", p.GetTimeout(), DefaultWarmUpTimeout, MaxWarmUpTimeout),
	}, v.List
}

// ParseDrain validates a policy, which may be nil. The Drain must not be used if there are violations.
func ParseDrain(p *pb.DrainPolicy) (Drain, []drivererr.FieldViolation) {
	if p == nil {
		return Drain{}, nil
	}
	v := &violations{drivererr.Fields{Path: "policy.traffic.drain"}}
	d := Drain{
		Period:   v.Duration("period", p.GetPeriod(), 0, MaxDrain),
		Metric:   v.metric(p.GetMetric()),
		Endpoint: v.endpoint("metric_endpoint", p.GetMetricEndpoint()),
		Timeout:  v.Duration("timeout", p.GetTimeout(), DefaultDrainTimeout, MaxDrain),
	}
	switch {
	case p.GetMetric() != "" && p.GetMetricEndpoint() == "":
		v.Add("metric_endpoint", "is required with metric: the port and path of the metrics, for example \":8000/metrics\"")
	case p.GetMetric() == "" && p.GetMetricEndpoint() != "":
		v.Add("metric", "is required with metric_endpoint: the metric to wait for, for example \"vllm:num_requests_running\"")
	}
	if len(v.List) > 0 {
		return d, v.List
	}
	// The checks of this switch combine fields. An invalid one would be reported twice.
	switch {
	case d.Period == 0 && d.Metric == "":
		v.Add("", "is empty: set period, or metric and metric_endpoint, or remove it")
	case d.Metric != "" && d.Period+d.Timeout > MaxDrain:
		v.Add("timeout", "is %s together with the period: at most %s is allowed", d.Period+d.Timeout, MaxDrain)
	}
	return d, v.List
}

type violations struct{ drivererr.Fields }

func (v *violations) metric(name string) string {
	if name != "" && !model.LegacyValidation.IsValidMetricName(name) {
		v.Add("metric", "%q is not a metric name: use letters, digits, \"_\" and \":\", without labels, "+
			"for example \"vllm:num_requests_running\"", name)
	}
	return name
}

func (v *violations) endpoint(part, text string) Endpoint {
	if text == "" {
		return Endpoint{}
	}
	e, err := parseEndpoint(text)
	if err != nil {
		v.Add(part, "%q is not a port and path such as \":8000/health\": %v", text, err)
	}
	return e
}

func parseEndpoint(text string) (Endpoint, error) {
	rest, found := strings.CutPrefix(text, ":")
	if !found {
		return Endpoint{}, fmt.Errorf("it must begin with \":\"; the host is each leader's own")
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return Endpoint{}, fmt.Errorf("a path that begins with \"/\" is missing")
	}
	digits, path := rest[:slash], rest[slash:]
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 {
		return Endpoint{}, fmt.Errorf("the port must be a number from 1 to 65535")
	}
	// ParseRequestURI takes a fragment for a part of the path.
	if _, err := url.ParseRequestURI(path); err != nil || strings.ContainsAny(path, " #") {
		return Endpoint{}, fmt.Errorf("the path has characters that must be percent-encoded")
	}
	return Endpoint{Port: uint16(port), Path: path}, nil
}
