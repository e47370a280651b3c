// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

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
	if err != nil {
		t.Fatal(err)
	}
	target := listener.Addr().String()
	_ = listener.Close()
	e := serving.NewEnv(t)
	d := driver.Prepare(t, driver.Kubeconfig(t, e.Cluster), e.Namespace)
	d.Args = []string{"--metrics-address", target}
	d.Begin()
	d.AwaitSync()
	prometheus, stop, err := cluster.StartPrometheus(t.Context(), t.TempDir(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
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
	if len(queries) < 20 {
		t.Fatalf("the dashboard has only %d queries", len(queries))
	}
	for _, query := range queries {
		await.Nil(t, "data of "+query, func(ctx context.Context) error {
			series, err := queryRange(ctx, prometheus, query, began)
			if err == nil && series == 0 {
				err = fmt.Errorf("no data")
			}
			return err
		})
	}
	if _, err := queryRange(t.Context(), prometheus, "rate(", began); err == nil {
		t.Error("an invalid query returns data")
	}
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
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$namespace", ".*", "$workload", ".*", "$__rate_interval", "5s")
	for _, p := range file.Panels {
		for _, target := range p.Targets {
			queries = append(queries, variables.Replace(target.Expr))
		}
	}
	return queries
}

// queryRange returns how many series a query returns at any second from a time until now.
func queryRange(ctx context.Context, prometheus, query string, from time.Time) (int, error) {
	values := url.Values{
		"query": {query}, "step": {"1"},
		"start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(time.Now().Unix(), 10)},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, prometheus+"/api/v1/query_range?"+values.Encode(), nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", query, answer.Error)
	}
	return len(answer.Data.Result), nil
}
