// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/serving"
)

// Each query of the published dashboard returns data of a release whose driver a real Prometheus scrapes: no query names a metric or label that does not exist.
//
// Proves (test): Monitoring: alerts; the account that reads metrics; queries of the dashboard.
func TestDashboardQueries(t *testing.T) {
	began := time.Now()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	target := listener.Addr().String()
	_ = listener.Close()
	e := serving.NewEnv(t)
	d := driver.Prepare(t, driver.Kubeconfig(t, e.Cluster), e.Namespace)
	d.Args = []string{"--metrics-address", target}
	d.Begin()
	d.AwaitSync()
	url, stop, err := cluster.StartPrometheus(t.Context(), t.TempDir(), target)
	require.NoError(t, err)
	t.Cleanup(stop)
	client, err := api.NewClient(api.Config{Address: url})
	require.NoError(t, err)
	// data returns the series that a query has at any second since the test began.
	data := func(ctx context.Context, query string) (model.Matrix, error) {
		value, _, _, err := prometheus.NewAPI(client).QueryRange(ctx, query, prometheus.Range{Start: began, End: time.Now(), Step: time.Second})
		series, _ := value.(model.Matrix)
		return series, err
	}
	s := serving.Prepare(e, d)
	e.Deploy("model", 4)
	s.Expose()
	// While the groups are verified, the release has a deadline.
	s.BeginBy(&pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}, Traffic: serving.ByRoute(), MinReady: durationpb.New(5 * time.Second),
	})
	s.Upgrade(0)
	s.Weight(10)

	queries := dashboard(t)
	require.GreaterOrEqual(t, len(queries), 20, "the dashboard has only %d queries", len(queries))
	for _, query := range queries {
		await.Nil(t, "data of "+query, func(ctx context.Context) error {
			series, err := data(ctx, query)
			if err == nil && len(series) == 0 {
				err = errors.New("no data")
			}
			return err
		})
	}
	_, err = data(t.Context(), "rate(")
	assert.Error(t, err, "an invalid query returns data")
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
}

// dashboard returns the queries of the published dashboard, for all namespaces and workloads.
func dashboard(t *testing.T) (queries []string) {
	t.Helper()
	raw := files.Read(t, filepath.Join("..", "..", "config", "monitoring", "dashboard.json"))
	var file struct {
		Panels []struct {
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(raw, &file))
	variables := strings.NewReplacer("$namespace", ".*", "$workload", ".*", "$__rate_interval", "5s")
	for _, p := range file.Panels {
		for _, target := range p.Targets {
			queries = append(queries, variables.Replace(target.Expr))
		}
	}
	return queries
}
