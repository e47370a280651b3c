// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// WritesEnv names a file to which each cluster adds a line when it stops: how many objects were written by requests to its API server.
const WritesEnv = "LOCKSTEP_TEST_WRITES"

// reportWrites adds the number of writes to the file of WritesEnv, if it is set.
func (c *Cluster) reportWrites() {
	path := os.Getenv(WritesEnv)
	if path == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	n, err := c.writes(ctx)
	if err == nil {
		err = appendLine(path, fmt.Sprint(n))
	}
	if err != nil {
		c.logf("count the writes: %v", err)
	}
}

// writes returns the number of write requests since the API server started. Leases and events are left out, since their number grows with
// the time that a suite takes. Deletions of collections are left out, since the end of a namespace causes one for each kind.
func (c *Cluster) writes(ctx context.Context) (int, error) {
	raw, err := c.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, families["apiserver_request_total"])
	if err != nil {
		return 0, fmt.Errorf("read the API server's requests: %w", err)
	}
	n := 0
	for _, s := range samples {
		switch s.Metric["resource"] {
		case "leases", "events":
			continue
		}
		switch s.Metric["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE":
			n += int(s.Value)
		}
	}
	return n, nil
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}
