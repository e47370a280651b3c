// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	// robustnessEnv is how long TestRobustness draws courses, seedEnv the seed of the first one (0: of the time).
	robustnessEnv, seedEnv = "LOCKSTEP_TEST_ROBUSTNESS", "LOCKSTEP_TEST_SEED"
	// keptCourses has the courses that have failed once.
	keptCourses = "testdata/robustness"
	// callTimeout bounds a call of the host, which goes on if its answer is lost.
	callTimeout = 2 * time.Second
)

// randomCourse is what a host, a user and faults do to a workload, one after the other. A course is data, so that one that failed is kept
// when the draws change.
type randomCourse struct {
	// Roles is true for a DisaggregatedSet. Its partition style is a shift.
	Roles bool `json:"roles,omitzero"`
	// Routed is true if the release splits the requests of an Ingress.
	Routed bool `json:"routed,omitzero"`
	// Scaled is true if an HPA scales the workload, or role prefill.
	Scaled bool         `json:"scaled,omitzero"`
	Style  string       `json:"style"`
	Steps  []courseStep `json:"steps"`
}

type courseStep struct {
	Do string `json:"do"`
	N  int32  `json:"n,omitempty"`
}

// kindOfStep is a step of a host, of a user, or of a fault.
type kindOfStep struct {
	do     string
	weight int   // in a draw
	n      int32 // the highest argument
	run    func(*courseRun, int32)
}

var courseSteps = []kindOfStep{
	{"release", 4, 0, func(c *courseRun, _ int32) { c.edit(); _ = c.initialize() }},
	{"upgrade", 10, 2, (*courseRun).upgrade},
	{"promote", 4, 0, func(c *courseRun, _ int32) { _, _ = c.finalize(c.last(), promote) }},
	{"abort", 4, 0, func(c *courseRun, _ int32) { _, _ = c.finalize(c.last(), rollback) }},
	{"edit", 2, 0, func(c *courseRun, _ int32) { c.edit() }},
	{"restore", 2, 0, (*courseRun).restore},
	{"undo", 1, 0, (*courseRun).undo},
	{"scale", 3, 5, (*courseRun).scale},
	{"slices", 1, 1, func(c *courseRun, n int32) {
		if c.behavior == "" { // LWS allows a set only one of both
			c.of.slice(1 + int(n))
		}
	}},
	{"settle", 8, 0, func(c *courseRun, _ int32) { c.settle() }},
	{"kill", 4, 1, func(c *courseRun, late int32) { c.proxy.meet(killing(c.w.driver, late == 1)) }},
	{"suspend", 2, 0, (*courseRun).suspend},
	{"set the clock", 2, 1, func(c *courseRun, ahead int32) { c.w.driver.Jump(ahead == 1) }},
	{"fault", 6, int32(len(faultKinds)) - 1, func(c *courseRun, n int32) { c.proxy.meet(faultKinds[n]) }},
	{"blind", 3, int32(len(watchedKinds)) - 1, func(c *courseRun, n int32) { c.proxy.refuseReads(watchedKinds[n]) }},
	{"late", 3, int32(len(watchedKinds)) - 1, func(c *courseRun, n int32) { c.proxy.freeze(10*staleFor, watchedKinds[n]) }},
	{"break", 2, 0, (*courseRun).breakGroup},
	{"calm", 6, 0, func(c *courseRun, _ int32) { c.calm() }},
	{"kill LWS", 2, 0, func(c *courseRun, _ int32) { c.kill(cluster.LWS, c.settle) }},
	{"suspend LWS", 2, 0, func(c *courseRun, _ int32) { c.still(cluster.LWS) }}, // its webhooks with it
	{"suspend the API server", 1, 0, func(c *courseRun, _ int32) { c.still(cluster.APIServer) }},
	{"suspend etcd", 1, 0, func(c *courseRun, _ int32) { c.still(cluster.Etcd) }},
	{"fill etcd", 2, 0, (*courseRun).fillEtcd},
	{"stop the API server", 1, 0, func(c *courseRun, _ int32) { c.w.outage(func() { c.settle() }, nil) }},
	{"kill etcd", 1, 0, func(c *courseRun, _ int32) { c.w.outage(func() { c.kill(cluster.Etcd, func() {}) }, nil) }},
}

// watchedKinds are what the driver has caches of, and may become blind for.
var watchedKinds = []string{
	"pods", "leaderworkersets", "controllerrevisions", "services", "endpointslices", "ingresses", "horizontalpodautoscalers",
	"disaggregatedsets", "replicabounds",
}

// drawCourse draws a course: a release, and what happens to it.
func drawCourse(seed uint64) randomCourse {
	random, total := rand.New(rand.NewPCG(seed, seed)), 0
	for _, s := range courseSteps {
		total += s.weight
	}
	c := randomCourse{
		Roles: seed%2 == 0, Routed: seed%4 >= 2, Scaled: seed%8 >= 4,
		Style: allStyles[random.IntN(len(allStyles))].name, Steps: []courseStep{{Do: "release"}},
	}
	for range 8 + random.IntN(12) {
		at := random.IntN(total)
		for _, s := range courseSteps {
			if at -= s.weight; at < 0 {
				c.Steps = append(c.Steps, courseStep{s.do, random.Int32N(s.n + 1)})
				break
			}
		}
	}
	return c
}

// TestRobustness runs random courses of faults and requests against one workload after the other, every second one a DisaggregatedSet, on a
// control plane of its own. After each course the faults end, and a last release is promoted. The observer judges every change, the drivers'
// decisions are replayed, and every answer is judged by the history of requests.
//
// Proves: Random faults and requests for five minutes: the safety rules hold, each granted request is in force or superseded.
func TestRobustness(t *testing.T) {
	t.Parallel()
	c := suite.Own(t, cluster.WithNodes(4, nil))
	suite.InstallRoles(t, c)
	kept, err := filepath.Glob(filepath.Join(keptCourses, "*.json"))
	require.NoError(t, err)
	for _, path := range kept {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var course randomCourse
			raw, err := os.ReadFile(path)
			if err == nil {
				err = json.Unmarshal(raw, &course)
			}
			require.NoError(t, err)
			course.run(t, c)
		})
	}
	lasts := setting(t, robustnessEnv, 5*time.Minute, time.ParseDuration)
	seed := setting(t, seedEnv, 1, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for begun := time.Now(); time.Since(begun) < lasts && !t.Failed(); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			course := drawCourse(seed)
			t.Cleanup(func() {
				if t.Failed() {
					course.keep(t, fmt.Sprintf("seed-%d.json", seed))
				}
			})
			course.run(t, c)
		})
	}
}

// setting returns the value of an environment variable.
func setting[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	value, err := parse(text)
	require.NoError(t, err, name)
	return value
}

// keep writes a course that failed to the directory that TestRobustness reads.
func (c randomCourse) keep(t *testing.T, name string) {
	t.Helper()
	raw, err := json.MarshalIndent(c, "", "  ")
	if err == nil {
		err = os.MkdirAll(keptCourses, 0o750)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(keptCourses, name), append(raw, '\n'), 0o600)
	}
	assert.NoError(t, err)
	t.Logf("the course is kept in test/e2e/%s/%s", keptCourses, name)
}

// released is what a course releases.
type released interface {
	ref() *pb.WorkloadRef
	// expose creates an Ingress, and the Service that receives its requests.
	expose()
	// retag changes the image in the template, and resize the groups, as a user does.
	retag(tag string)
	resize(groups int32)
	// scaleBy has an HPA scale the workload, or one role.
	scaleBy()
	// slice sets the slices, if the workload can have more than one.
	slice(n int)
	// stableTag returns the image's tag of the stable revision while the user has to restore that template for an abort, "" if not.
	stableTag() string
	// mustEnd fails unless all groups run a tag, and nothing is left of a release.
	mustEnd(tag string)
}

func (w *workload) retag(tag string) { w.edit(image(tag)) }

// An API server that has just started refuses to scale until it knows the kind of bounds.
func (w *workload) resize(groups int32) {
	w.eventually("the user scales", func(ctx context.Context) error { return w.tryScale(ctx, groups) })
}

func (w *workload) scaleBy() { w.autoscale(1, 8, selectPolicies(maxChange, minChange)) }

func (w *workload) slice(int) {}

func (w *workload) stableTag() string {
	if tag := stableImage.FindStringSubmatch(w.get().Annotations[recordAnnotation]); tag != nil {
		return tag[1]
	}
	return ""
}

func (w *workload) mustEnd(tag string) {
	w.t.Helper()
	w.awaitReady()
	w.mustRun(tag)
	w.mustBeIdle()
}

// roleCourse is a DisaggregatedSet in a course. Both roles have the same number of groups.
type roleCourse struct {
	*roleSet
	groups int32
	slices int
}

func (s *roleCourse) retag(tag string) { s.setImage(tag) }

func (s *roleCourse) resize(groups int32) {
	s.groups = groups
	s.scale(groups, groups)
}

func (s *roleCourse) scaleBy() {
	if s.hasScalers() {
		s.autoscale()
	}
}

func (s *roleCourse) slice(n int) {
	if s.hasScalers() {
		s.slices = n
		s.setSlices(n)
	}
}

func (s *roleCourse) stableTag() string { return "" }

func (s *roleCourse) mustEnd(tag string) {
	s.t.Helper()
	if s.slices == 1 {
		s.Await(tag, s.groups, s.groups)
	} else {
		s.wake() // LWS has backed off while it might not create the children of the slice
		s.awaitSlices(tag, slices.Repeat([][2]int32{{s.groups, s.groups}}, s.slices)...)
	}
	s.eventually("the children of other revisions are deleted", func(ctx context.Context) error {
		all, err := s.env.lws.LeaderworkersetV1().LeaderWorkerSets(s.namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(all.Items) != 2*s.slices {
			err = fmt.Errorf("%d children exist", len(all.Items))
		}
		return err
	})
}

// courseRun runs a course.
type courseRun struct {
	of    released
	w     *workload // of a DisaggregatedSet it has the namespace and the driver only
	proxy *proxy
	style style
	// selector is that of the Service that gets the requests, nil without.
	selector map[string]string
	// behavior is that of the HPA at rest, "" without one.
	behavior string
	// edits counts the templates.
	edits int
	requests
}

// startsOver reports whether a release may start over in mid-promotion: the template is edited after a promotion was requested.
func (c randomCourse) startsOver() bool {
	does := func(kinds ...string) func(courseStep) bool {
		return func(s courseStep) bool { return slices.Contains(kinds, s.Do) }
	}
	promotes := slices.IndexFunc(c.Steps, does("promote"))
	return promotes >= 0 && slices.ContainsFunc(c.Steps[promotes:], does("release", "edit", "restore", "undo"))
}

func (c randomCourse) run(t *testing.T, on *cluster.Cluster) {
	t.Helper()
	e := newEnvIn(t, on)
	e.admit() // without it LWS may roll a group to a template that is edited in mid-promotion
	p := newProxy(t, e, fault{})
	e.driver = driver.Prepare(t, p.kubeconfig, e.namespace)
	e.driver.Binary = driver.ClockBinary
	e.driver.Begin()
	p.open()
	at := slices.IndexFunc(allStyles, func(s style) bool { return s.name == c.Style })
	require.GreaterOrEqual(t, at, 0, "no style %q", c.Style)
	if c.startsOver() {
		// Groups are at two revisions then, and the policy restores the hold before the driver decides it. What LWS rolls is judged even so.
		e.observer.waive(ruleStableUntouched, ruleBatch, ruleHold)
	}
	r := &courseRun{proxy: p, style: allStyles[at], edits: 1}
	if c.Roles {
		e.observer.waive(ruleHold)
		set := rolesIn(e, 3, 3)
		set.adopt()
		r.of, r.w = &roleCourse{set, 3, 1}, set.workload
	} else {
		r.w = e.adopt(model("model", 3, 2))
		r.of = r.w
	}
	if c.Routed {
		r.of.expose()
		r.selector = r.w.service().Spec.Selector
	}
	if c.Scaled {
		r.of.scaleBy()
		r.behavior = r.autoscalerBehavior()
	}
	for _, s := range c.Steps {
		i := slices.IndexFunc(courseSteps, func(k kindOfStep) bool { return k.do == s.Do })
		require.GreaterOrEqual(t, i, 0, "no step %q", s.Do)
		t.Logf("%s %s %d", time.Now().Format("15:04:05.000"), s.Do, s.N)
		courseSteps[i].run(r, s.N)
		r.revive()
		r.judge()
	}
	r.end()
}

// end ends all faults and the release that is under way, and promotes a last template.
func (c *courseRun) end() {
	c.w.t.Helper()
	c.calm()
	c.until("the release under way ends", c.finish)
	c.edit()
	c.until("the last release begins", c.initialize)
	c.until("the last release is promoted", func() error { return c.promoted(c.last()) })
	c.judge()
	c.of.mustEnd(c.tag())
	if c.behavior != "" {
		c.w.awaitAutoscalerRestored()
		now := c.autoscalerBehavior()
		assert.Equal(c.w.t, c.behavior, now, "the HPA has %s, and %s before", now, c.behavior)
	}
	if c.selector == nil {
		return
	}
	now := c.w.service().Spec.Selector
	assert.True(c.w.t, maps.Equal(now, c.selector), "the Service selects %v, and %v before", now, c.selector)
	ingresses, err := c.w.kube.NetworkingV1().Ingresses(c.w.namespace).List(c.w.t.Context(), metav1.ListOptions{})
	if err != nil || len(ingresses.Items) != 1 {
		c.w.t.Errorf("%d Ingresses are left (%v)", len(ingresses.Items), err)
	}
	services, err := c.w.kube.CoreV1().Services(c.w.namespace).List(c.w.t.Context(), metav1.ListOptions{LabelSelector: roleLabel})
	assert.True(c.w.t, err == nil && len(services.Items) == 0, "%d canary Services are left (%v)", len(services.Items), err)
	serving, err := c.w.kube.CoreV1().Pods(c.w.namespace).List(c.w.t.Context(), metav1.ListOptions{LabelSelector: servingLabel})
	assert.True(c.w.t, err == nil && len(serving.Items) == 0, "%d pods are marked (%v)", len(serving.Items), err)
}

// autoscalerBehavior returns the behavior of the HPA, "" without one.
func (c *courseRun) autoscalerBehavior() string {
	c.w.t.Helper()
	all, err := c.w.kube.AutoscalingV2().HorizontalPodAutoscalers(c.w.namespace).List(c.w.t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) == 0 {
		return ""
	}
	return asJSON(all.Items[0].Spec.Behavior)
}

// scale changes the number of groups, with the bounds of the HPA if there is one.
func (c *courseRun) scale(n int32) {
	n = max(n, 1)
	if c.behavior != "" {
		c.w.editAutoscaler(bounds(n, n))
	}
	c.of.resize(n)
}

// restore restores an earlier template as a user does, which asks for the end of a release from it.
func (c *courseRun) restore(int32) {
	c.send(request{c.last(), rollback})
	c.of.retag(fmt.Sprint("v", max(c.edits-1, 1)))
}

// undo has the driver do the same.
func (c *courseRun) undo(int32) {
	c.send(request{c.last(), rollback})
	_, _ = within(c, func(ctx context.Context) (*pb.UndoResponse, error) {
		return c.w.driver.Undo(ctx, &pb.UndoRequest{Workload: c.of.ref()})
	})
}

// policy is that of a release of the course.
func (c *courseRun) policy() *pb.ReleasePolicy {
	p := c.style.policy(policy("34%", "67%", "100%"))
	// After a tenth of it the driver notes a wait in the object, which has LWS try again what an API server that had just started refused.
	p.ProgressDeadline = durationpb.New(10 * time.Minute)
	if c.selector == nil {
		return p
	}
	return c.w.withTraffic(p)
}

func (c *courseRun) context(ctx context.Context) (*pb.BatchContext, error) {
	r, err := c.w.driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: c.of.ref(), IncludeGroups: true})
	return r.GetContext(), err
}

// finish returns nil once no release is under way. It promotes one that was not aborted. If one was, it restores the stable template, without
// which LWS may have nothing to restart the groups from: the driver asks for it.
func (c *courseRun) finish() error {
	r, err := within(c, c.context)
	switch {
	case err != nil:
		return err
	case r.GetReleaseId() == "" || r.GetState() == completed || r.GetState() == rolledBack:
		return nil
	case r.GetIntent() == rollback:
		if names := halfCreated.FindStringSubmatch(r.GetMessage()); names != nil {
			return c.remove(strings.Fields(names[1]))
		}
		if tag := c.of.stableTag(); tag != "" {
			c.of.retag(tag)
		}
		return fmt.Errorf("%w: %s", errNotYet, r.GetMessage())
	case halfCreated.MatchString(r.GetMessage()):
		// LWS was killed between two children, and never creates the other one. The user aborts, and does what the driver says.
		_, err = c.finalize(r.GetReleaseId(), rollback)
		return cmp.Or(err, errNotYet)
	default:
		return c.promoted(r.GetReleaseId())
	}
}

// halfCreated finds the children that the user is to delete.
var halfCreated = regexp.MustCompile("`kubectl -n [^ ]+ delete leaderworkersets ([^`]+)`")

// remove deletes children of a DisaggregatedSet as a user does.
func (c *courseRun) remove(children []string) error {
	for _, name := range children {
		sets := c.w.lws.LeaderworkersetV1().LeaderWorkerSets(c.w.namespace)
		_, _ = sets.Patch(c.w.t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"lockstep.dev/deletable":"true"}}}`), metav1.PatchOptions{})
		err := sets.Delete(c.w.t.Context(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return errNotYet
}

// stableImage finds the tag of the stable template in a record.
var stableImage = regexp.MustCompile(`"image":"example.com/model:(v[0-9]+)"`)

// promoted returns nil once a release is promoted.
func (c *courseRun) promoted(id string) error {
	r, err := c.finalize(id, promote)
	if err == nil && !r.GetDone() {
		return fmt.Errorf("%w: %s", errNotYet, r.GetContext().GetMessage())
	}
	return err
}

// until repeats a call until it succeeds.
func (c *courseRun) until(what string, call func() error) {
	c.w.t.Helper()
	var last string
	await.NilWithin(c.w.t, await.Patience, what, func(context.Context) error {
		c.revive()
		err := call()
		if err != nil && err.Error() != last {
			last = err.Error()
			c.w.t.Logf("%s: %s", what, last)
		}
		return err
	})
}

func (c *courseRun) tag() string { return fmt.Sprint("v", c.edits) }

// edit changes the template to one that was never used.
func (c *courseRun) edit() {
	c.edits++
	c.of.retag(c.tag())
}

// within makes a call with a timeout.
func within[T any](c *courseRun, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(c.w.t.Context(), callTimeout)
	defer cancel()
	return call(ctx)
}

func (c *courseRun) initialize() error {
	id := fmt.Sprint("r", c.edits)
	n := c.send(request{id: id})
	r, err := within(c, func(ctx context.Context) (*pb.InitializeResponse, error) {
		return c.w.driver.Initialize(ctx, &pb.InitializeRequest{
			Workload: c.of.ref(), ReleaseId: id, Policy: c.policy(), Owner: "robustness",
		})
	})
	c.answered(n, r.GetContext(), err)
	return err
}

func (c *courseRun) upgrade(batch int32) {
	_, _ = within(c, func(ctx context.Context) (*pb.UpgradeBatchResponse, error) {
		return c.w.driver.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
			Workload: c.of.ref(), ReleaseId: c.last(), Target: &pb.UpgradeBatchRequest_Batch{Batch: batch},
		})
	})
}

func (c *courseRun) finalize(id string, intent pb.FinalizeIntent) (*pb.FinalizeResponse, error) {
	n := c.send(request{id, intent})
	r, err := within(c, func(ctx context.Context) (*pb.FinalizeResponse, error) {
		return c.w.driver.Finalize(ctx, &pb.FinalizeRequest{Workload: c.of.ref(), ReleaseId: id, Intent: intent})
	})
	c.answered(n, r.GetContext(), err)
	return r, err
}

// settle waits until the driver waits for its host, but not for ever: a fault may keep it from that.
func (c *courseRun) settle() {
	_ = wait.PollUntilContextTimeout(c.w.t.Context(), callTimeout/100, 2*callTimeout, true, func(context.Context) (bool, error) {
		c.revive()
		r, err := within(c, c.context)
		return err == nil && slices.Contains(
			[]pb.State{pb.State_STATE_HOLDING, pb.State_STATE_READY, completed, rolledBack, pb.State_STATE_FAILED}, r.GetState()), nil
	})
}

// suspend stops the driver for as long as a call waits for it.
func (c *courseRun) suspend(int32) {
	c.w.driver.Suspend()
	defer c.w.driver.Resume()
	_, _ = within(c, c.context)
}

// breakGroup breaks the first group that a release added. In a promotion and in a shift the new groups of a DisaggregatedSet become its own, so
// that this would take capacity, which the observer would blame on the driver.
func (c *courseRun) breakGroup(int32) {
	if _, roles := c.of.(*roleCourse); roles {
		r, err := within(c, c.context)
		if err != nil || r.GetIntent() != pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED || r.GetStyle() == pb.Style_STYLE_PARTITION {
			return
		}
	}
	c.behave(map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady})
}

// behave changes how the first group that a release added behaves: of a DisaggregatedSet one of each role.
func (c *courseRun) behave(annotations map[string]any) {
	r, err := within(c, c.context)
	if err != nil {
		return
	}
	sets := suite.List(c.w.t, c.w.lws.LeaderworkersetV1().LeaderWorkerSets(c.w.namespace), metav1.ListOptions{})
	for _, s := range sets.Items {
		if s.Name == r.GetCanaryWorkload() || r.GetUpdateRevision() != "" && s.Labels[disaggregated.RevisionLabelKey] == r.GetUpdateRevision() {
			c.w.patchPods(s.Name, annotations, 0)
		}
	}
}

// calm ends the faults.
func (c *courseRun) calm() {
	c.proxy.meet(fault{})
	c.proxy.refuseReads()
	c.revive()
	c.behave(heal)
}

// still stops a component as SIGSTOP does, for as long as the driver may need.
func (c *courseRun) still(component string) {
	c.during(
		func(context.Context) error { return c.w.cluster.SuspendComponent(component) },
		func(context.Context) error { return c.w.cluster.ResumeComponent(component) },
	)
}

// during lets a fault last for as long as the driver may need.
func (c *courseRun) during(begin, end func(context.Context) error) {
	err := begin(c.w.t.Context())
	if err == nil {
		c.settle()
		err = end(c.w.t.Context())
	}
	require.NoError(c.w.t, err)
}

// fillEtcd makes etcd refuse writes. KWOK, unlike a kubelet, repeats a refused one only when it starts.
func (c *courseRun) fillEtcd(int32) {
	c.during(c.w.cluster.FillEtcd, c.w.cluster.FreeEtcd)
	c.kill(cluster.KWOK, func() {})
}

// kill kills a component in the middle of what it does, and starts it again after meanwhile.
func (c *courseRun) kill(component string, meanwhile func()) {
	err := c.w.cluster.KillComponent(component)
	if err == nil {
		meanwhile()
		err = c.w.cluster.StartComponent(c.w.t.Context(), component)
	}
	require.NoError(c.w.t, err)
}

// revive starts the driver again if a fault has killed it.
func (c *courseRun) revive() {
	if c.proxy.hasCrashed() {
		c.w.driver.Kill()
		c.proxy.meet(fault{})
		c.w.driver.Begin()
		c.proxy.open()
	}
}

// judge judges the driver's state by the requests.
func (c *courseRun) judge() {
	c.w.t.Helper()
	if r, err := within(c, c.context); err == nil {
		assert.NoError(c.w.t, c.requests.judge(request{r.GetReleaseId(), r.GetIntent()}, r.GetUpdateRevision()), show(r))
	}
}

// request is what a host asked for: a release, or the end of one.
type request struct {
	id     string
	intent pb.FinalizeIntent
}

// requests are those of a host, in order.
type requests struct {
	sent []request
	// granted is how many of them were sent when the last one was that the driver has granted, for this revision.
	granted  int
	revision string
}

func (r *requests) last() string {
	if len(r.sent) == 0 {
		return ""
	}
	return r.sent[len(r.sent)-1].id
}

// send notes a request before it is sent, and returns its number.
func (r *requests) send(q request) int {
	r.sent = append(r.sent, q)
	return len(r.sent) - 1
}

// answered notes the answer to the last request. One whose answer was lost may be in force.
func (r *requests) answered(n int, context *pb.BatchContext, err error) {
	switch {
	case err == nil:
		r.granted, r.revision = n+1, context.GetUpdateRevision()
	case slices.Contains([]codes.Code{codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition}, status.Code(err)):
		r.sent = r.sent[:n]
	}
}

// judge returns an error unless the request that is in force was made, and no later one was granted for the same revision: each granted
// request is in force or was superseded, by another or by a template with which the release starts over, and none is invented.
func (r *requests) judge(inForce request, revision string) error {
	if inForce.id == "" && r.granted == 0 {
		return nil
	}
	for n := len(r.sent) - 1; n >= 0; n-- {
		if r.sent[n] == inForce {
			if n+1 < r.granted && revision == r.revision {
				return fmt.Errorf("%v is in force, though %v was granted later", inForce, r.sent[r.granted-1])
			}
			return nil
		}
	}
	return fmt.Errorf("%v is in force, and was never requested", inForce)
}

// A granted request that is lost, and one that was never made, are reported.
//
// Proves: The observer reports a granted request that is lost, and one that was never made.
func TestRequestsAreJudged(t *testing.T) {
	var r requests
	r.answered(r.send(request{id: "r1"}), &pb.BatchContext{UpdateRevision: "a"}, nil)
	r.answered(r.send(request{"r1", promote}), nil, status.Error(codes.DeadlineExceeded, "lost"))
	r.answered(r.send(request{"r1", rollback}), &pb.BatchContext{UpdateRevision: "a"}, nil)
	r.answered(r.send(request{id: "r2"}), nil, status.Error(codes.FailedPrecondition, "refused"))
	for _, test := range []struct {
		inForce  request
		revision string
		ok       bool
	}{
		{request{"r1", rollback}, "a", true},
		{request{"r1", promote}, "a", false}, // superseded
		{request{id: "r1"}, "a", false},      // lost
		{request{id: "r1"}, "b", true},       // the release has started over
		{request{id: "r2"}, "a", false},      // refused
		{request{}, "", false},
	} {
		err := r.judge(test.inForce, test.revision)
		assert.Equal(t, test.ok, err == nil, "%v of %s: %v", test.inForce, test.revision, err)
	}
}
