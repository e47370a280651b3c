// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// style is a release style, for tests that run in each.
type style struct {
	name string
	pb   pb.Style
	// handover: the second set becomes the workload. full: with traffic and an autoscaler, which are handed over.
	handover, full bool
}

var (
	canaryStyle    = style{name: "canary", pb: pb.Style_STYLE_CANARY}
	blueGreenStyle = style{name: "blue-green", pb: pb.Style_STYLE_BLUE_GREEN}
	partitionStyle = style{name: "partition", pb: pb.Style_STYLE_PARTITION}

	handoverStyle     = style{name: "handover", pb: pb.Style_STYLE_BLUE_GREEN, handover: true}
	fullHandoverStyle = style{name: "handover", pb: pb.Style_STYLE_BLUE_GREEN, handover: true, full: true}

	allStyles = []style{canaryStyle, blueGreenStyle, partitionStyle}
)

func (s style) inPlace() bool { return s == partitionStyle }

// policy returns a copy of the policy in this style.
func (s style) policy(p *pb.ReleasePolicy) *pb.ReleasePolicy {
	p = proto.CloneOf(p)
	p.Style = s.pb
	return p
}

// inStyles runs a test for each style.
func inStyles(t *testing.T, run func(*testing.T, style)) {
	t.Helper()
	t.Parallel()
	for _, s := range allStyles {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			run(t, s)
		})
	}
}

func inPlace(batches ...string) *pb.ReleasePolicy { return partitionStyle.policy(policy(batches...)) }

// A release in place: it adds no groups, and groups outside the batch are not restarted.
//
// Proves (smoke): Partition: groups are replaced in place, only those of the batch.
func TestPartitionPromote(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 4, 2))
	before := w.stablePods()
	w.edit(image("v2"))
	w.initialize("r1", inPlace("25%", "50%", "100%"))
	for batch, want := range []want{
		{pb.State_STATE_READY, 1, 1, 1, 3, 4, 25},
		{pb.State_STATE_READY, 2, 2, 2, 2, 4, 50},
		{pb.State_STATE_READY, 4, 4, 4, 0, 4, 100},
	} {
		w.upgrade("r1", int32(batch))
		w.awaitMatch(want)
		if batch == 0 {
			w.sameGroupsBelow(before, 3)
		}
	}
	w.finalize("r1", promote)
	w.awaitMatch(want{pb.State_STATE_COMPLETED, 4, 4, 4, 0, 4, 100})
	w.mustRun("v2")
	w.mustBeIdle()
}

// Without traffic the weight follows the groups; the promotion completes the second set, which stays for the delay.
//
// Proves: Each style: promote and roll back from each batch; scale-down delay.
func TestBlueGreenScaleDownDelay(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 3, 2))
	w.edit(image("v2"))
	p := blueGreenStyle.policy(policy("34%", "100%"))
	p.BlueGreen = &pb.BlueGreenPolicy{ScaleDownDelay: seconds(10)}
	w.initialize("r1", p)
	green := w.upgrade("r1", 0).GetContext().GetCanaryWorkload()
	w.startFinalize("r1", promote)
	c := w.await("the delay runs", func(c *pb.BatchContext) bool { return c.GetReason() == "WaitingForScaleDownDelay" })
	w.mustRun("v2")
	assert.Equal(t, 6, len(w.podsOf(green)), "pods of the second set: %s", show(c))
	begun := w.record().Release.PhaseAt
	w.awaitState(completed)
	assert.GreaterOrEqual(t, time.Since(begun), 10*time.Second, "the second set was deleted after")
	w.mustBeIdle()
}

// With traffic one write switches the requests to the second set, the workload's own groups are replaced all at once, and the
// requests return to them.
//
// Proves (smoke): Blue-green: one write switches; the workload is replaced at once.
func TestBlueGreenSwitch(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for name, intent := range map[string]pb.FinalizeIntent{"promote": promote, "rollback": rollback} {
		t.Run(name, func(t *testing.T) {
			w := e.in(t).adopt(model(name, 3, 2, annotated(cluster.AnnotationStartup, "300ms")))
			w.expose()
			before := w.stablePods()
			w.edit(image("v2"))
			p := blueGreenStyle.policy(policy("34%", "100%"))
			p.Traffic = &pb.TrafficPolicy{StableService: name + "-http", Ingresses: []string{name}}
			w.initialize("r1", p)
			w.upgrade("r1", 0)
			w.upgrade("r1", 1)
			if intent == rollback {
				w.finalize("r1", rollback)
				w.sameGroups(before)
				w.mustBeIdle()
				return
			}
			w.startFinalize("r1", promote)
			w.awaitObject("all groups are replaced at once", func() bool {
				return allAtOnce(w.get().Spec.RolloutStrategy.RollingUpdateConfiguration)
			})
			w.awaitState(completed)
			w.mustRun("v2")
			w.mustBeIdle()
		})
	}
}

// Proves: Blue-green: the second set follows a scale-up while it has all requests.
func TestBlueGreenScaledUp(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2, annotated(cluster.AnnotationStartup, "5s")))
	w.expose()
	w.edit(image("v2"))
	p := blueGreenStyle.policy(policy("100%"))
	p.Traffic = &pb.TrafficPolicy{StableService: "model-http", Ingresses: []string{"model"}}
	w.initialize("r1", p)
	green := w.upgrade("r1", 0).GetContext().GetCanaryWorkload()
	w.startFinalize("r1", promote)
	w.awaitObject("the groups are replaced at once", func() bool { return allAtOnce(w.get().Spec.RolloutStrategy.RollingUpdateConfiguration) })
	w.scale(3)
	w.awaitObject("the second set follows", func() bool { return replicasOf(w.getNamed(green)) == 3 })
	w.awaitState(completed)
	w.mustRun("v2")
	w.mustBeIdle()
}

// expose creates a Service that selects the workload's leaders and an Ingress with it as backend. The Service is NAME-http,
// since LWS creates one with the workload's name.
func (w *workload) expose() {
	w.t.Helper()
	w.exposeBy(w.name, map[string]string{lws.SetNameLabelKey: w.name, lws.WorkerIndexLabelKey: "0"})
}

// exposeBy creates an Ingress with a name, and its Service with a selector.
func (e *env) exposeBy(name string, selector map[string]string) {
	e.t.Helper()
	service := name + "-http"
	port := corev1.ServicePort{Name: "http", Port: 80}
	_, err := e.kube.CoreV1().Services(e.namespace).Create(e.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{port}, Selector: selector},
	}, metav1.CreateOptions{})
	require.NoError(e.t, err)
	_, err = e.kube.NetworkingV1().Ingresses(e.namespace).Create(e.t.Context(), &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.IngressSpec{
			IngressClassName: ptr.To("nginx"),
			DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: service, Port: networkingv1.ServiceBackendPort{Name: "http"},
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(e.t, err)
}
