// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
)

// queryTimeout bounds one query.
const queryTimeout = 20 * time.Second

// Prometheus takes measurements, from Prometheus or a server with its HTTP API.
type Prometheus struct {
	api v1.API
	// address has no password.
	address string
}

// NewPrometheus returns a client of the server at a URL. ConfigFile is YAML as promtool's --http.config.file has it: credentials and
// TLS. Empty means none.
func NewPrometheus(address, configFile string) (*Prometheus, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		// It may have a password, so it is not repeated.
		return nil, errors.New("the address of Prometheus is invalid: want a URL, for example http://prometheus.monitoring:9090")
	}
	// Messages repeat the address, so it must have no secret.
	if u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("the address of Prometheus at %s has a user or a query: put credentials into a file for --prometheus-config", u.Host)
	}
	client := config.DefaultHTTPClientConfig
	if configFile != "" {
		read, _, err := config.LoadHTTPConfigFile(configFile)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", configFile, err)
		}
		client = *read
	}
	transport, err := config.NewRoundTripperFromConfig(client, "lockstep")
	if err != nil {
		return nil, fmt.Errorf("configure the client of Prometheus: %w", err)
	}
	c, err := api.NewClient(api.Config{Address: address, RoundTripper: transport})
	if err != nil {
		return nil, fmt.Errorf("configure the client of Prometheus: %w", err)
	}
	return &Prometheus{api: v1.NewAPI(c), address: address}, nil
}

// Measure takes one measurement.
func (p *Prometheus) Measure(ctx context.Context, g Gate, about Subject) Measurement {
	query, err := g.PromQL(about)
	if err != nil {
		return Measurement{Problem: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	// Without a time Prometheus uses its own clock, from which this machine's may differ.
	value, warnings, _, err := p.api.Query(ctx, query, time.Time{})
	if err == nil && len(warnings) > 0 { // for example Thanos's, that a store did not answer: what is missing may be what fails
		err = fmt.Errorf("the answer may be incomplete: %.200s", strings.Join(warnings, "; "))
	}
	if err != nil {
		return Measurement{Err: fmt.Errorf("query Prometheus at %s: %w", p.address, explainError(err))}
	}
	return judgeValue(value)
}

// explainError adds what Prometheus says to an error.
func explainError(err error) error {
	if e, ok := errors.AsType[*v1.Error](err); ok && e.Detail != "" {
		return fmt.Errorf("%w: %.200s", err, e.Detail)
	}
	return err
}

// judgeValue returns the measurement of a query's value.
func judgeValue(value model.Value) Measurement {
	switch v := value.(type) {
	case *model.Scalar:
		return judgeNumber(v.Value)
	case model.Vector:
		switch {
		case len(v) == 0:
			return Measurement{Problem: "no data: the query has no result"}
		case len(v) == 1 && v[0].Histogram != nil: // its value is 0, which most limits would pass
			return Measurement{Problem: "the result is a histogram, want one number: apply for example histogram_quantile"}
		case len(v) == 1:
			return judgeNumber(v[0].Value)
		default:
			return Measurement{Problem: fmt.Sprintf("the query has %d results, want one: aggregate them, for example with sum or max", len(v))}
		}
	default:
		return Measurement{Problem: fmt.Sprintf("the query has a result of type %s, want one number", value.Type())}
	}
}

func judgeNumber(value model.SampleValue) Measurement {
	switch v := float64(value); {
	case math.IsNaN(v):
		return Measurement{Problem: "no data: the result is NaN"}
	case math.IsInf(v, 0):
		return Measurement{Problem: fmt.Sprintf("the result is %s: is the divisor 0?", formatNumber(v))}
	default:
		return Measurement{Value: &v}
	}
}
