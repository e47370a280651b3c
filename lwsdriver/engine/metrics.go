// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// metrics are about the driver's work; CalculateBatchContext and events report the state of releases.
type metrics struct {
	writes     *prometheus.CounterVec
	states     *prometheus.CounterVec
	reconciles *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer, t *admission) *metrics {
	register := promauto.With(r)
	m := &metrics{
		writes: register.NewCounterVec(prometheus.CounterOpts{
			Namespace: "lockstep", Name: "writes_total",
			Help: "Writes to the API server, by action and result (ok or the error's reason).",
		}, []string{"action", "result"}),
		states: register.NewCounterVec(prometheus.CounterOpts{
			Namespace: "lockstep", Name: "release_state_entered_total",
			Help: "How often a release entered a state, by state.",
		}, []string{"state"}),
		reconciles: register.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "lockstep", Name: "reconcile_duration_seconds",
			Help:    "Time of one pass over a workload, writes included, by result (ok or the error's reason).",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}, []string{"result"}),
	}
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "lockstep", Name: "groups_in_flight",
		Help: "Groups of all releases that were created or replaced and are not ready yet; --max-groups-in-flight limits them.",
	}, func() float64 { n, _ := t.counts(); return float64(n) })
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "lockstep", Name: "releases_waiting_for_admission",
		Help: "Releases that wait until fewer groups are in flight.",
	}, func() float64 { _, n := t.counts(); return float64(n) })
	if r != nil {
		r.MustRegister(guard.Metrics())
	}
	return m
}

func (m *metrics) applied(a plan.Action, wrote bool, err error) {
	if wrote || err != nil {
		m.writes.WithLabelValues(actionName(a), resultLabel(observe.ContractError(err))).Inc()
	}
}

func stateName(s pb.State) string { return strings.TrimPrefix(s.String(), "STATE_") }

// actionName returns the action's type, for example "ScaleCanary".
func actionName(a plan.Action) string { return strings.TrimPrefix(fmt.Sprintf("%T", a), "plan.") }

func resultLabel(err error) string {
	if err == nil {
		return "ok"
	}
	return drivererr.Name(drivererr.Reason(err))
}
