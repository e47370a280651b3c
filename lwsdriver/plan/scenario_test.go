// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// TestScenarios runs testdata/*.txt. Each test is an observation of a workload, in these lines, and the planner's
// decision.
//
//	workload NAME replicas=N revision=R [size=N] [autoscaled] [recorded=R,R] [hold | rolling=PARTITION/UNAVAILABLE/SURGE] [deleting [orphans]] [unobserved]
//	  [changed-by=MANAGER]
//	record [version=N] [saved=UNAVAILABLE/SURGE] [phase=P stable=R update=R [since=AGE] [target=T] [set=hold | set=P/U/S] [template] [splitEnded] [forced=INDEX,INDEX]
//	  [began-with=N]
//	  [successor=NAME groups=N]] [known-as=NAME] [succeeded] [owner=O]
//	policy [style=S] [threshold=Q] [deadline=D] [min-ready=D] [scale-down-delay=D] [adopt] [rollout=ID batches=Q,Q]
//	canary NAME replicas=N carries=R [revision=R] [target=T] [deleting[=AGE] [lingers]] [no-finalizer] [drifted] [orphaned] [scaled-by=MANAGER]
//	groups FIRST[-LAST] [revision=R] [ready=AGE] [first=AGE] [lost=AGE] [reason=REASON] [serving] [rollouts=ID/BATCH,-]
//	  [terminating[=ready]] [restarts=N] [ready-pods=N]
//	traffic [requested=N [for=N]] [isolated] [prepared] [weight=N] [seen=N] [stable=N] [pods=I,J] [leaking] [endpoints-lag] [handed-over]
//	  [gone | blocked | unread]
//	history REVISION [number=N [at=AGE] [by=MANAGER] [release=ID owner=O] [outcome=Promoted|RolledBack ended=AGE] [problem=TEXT]] | history unread
//	history-limit N, after the history
//	drain [done] [message=TEXT] [recheck=AGE]
//	autoscaler KIND/NAME [scales[=up|down]] [held[=down]] [to-zero] [max=N] [limited]
//	  [elsewhere | transferred] [lingers=NAME] [unreadable=REASON]
//	unscanned REASON
//	waiting since=AGE
//	waited since=AGE [for=REQUEST] [overwritten=TEXT]
//	room groups=N
//	changes [size=OLD/NEW] [subdomain=OLD/NEW] [claims=OLD/NEW]
//	newer TEXT
//
// groups belong to the workload or canary above them; without ready= they are not ready, without revision= their pods are
// missing. rollouts are the rollout labels of their pods, - for pods without. A target is QUANTITY@AGE, or
// QUANTITY#BATCH@AGE. An AGE is how long ago. lingers: it is being deleted in the background.
//
// traffic is the routing of the release: the host requested a share for a number of groups, the stable Service is isolated, the canary Service
// exists, the route has a weight, which the gateway has seen; how many endpoints the stable Service has, and which canary
// leaders the canary Service has. leaking: the stable Service still has endpoints of canary leaders. endpoints-lag: in
// place, the stable Service is no longer isolated, but its endpoints are not updated yet. handed-over: the stable Service selects
// the canary's leaders. gone: the stable Service is missing; blocked: the next write is refused; unread: the caches are
// empty. drain is how far the leaders that are to finish their requests have; unanswered: they were not asked yet.
//
// succeeded: the successor is a workload of its own. known-as is the name that hosts know the workload by.
//
// autoscaler scales the workload, its successor (transferred), or another object (elsewhere). held: it has a note of its
// user's settings. lingers: an object that its controller created for it still exists. unscanned is why the autoscalers
// are unknown. waiting is since when what is asked for was not reached. room is how many groups may be in flight. newer is what this driver does not know of the record.
//
// A course is a small world (see config) and what happens in it, as the explorer prints it: what the driver decides, and how it ends. That
// of a DisaggregatedSet is "roles", and its acts are begins of those that the explorer prints.
//
// It is 12:00 UTC. The decision shows times as ages; recheck is when time alone will change it.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	require.True(t, err == nil && len(paths) != 0, "no scenarios: %v", err)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) { runScenarios(t, path) })
	}
}

// Users paste the commands of a message, whatever namespace their kubeconfig has, and know values as a policy file has them.
func TestMessagesOfScenarios(t *testing.T) {
	wrong := regexp.MustCompile("(lockstep (undo|abort|disown)( -|[^ a-z]|$| (and|to|or) )|STYLE_[^U]|BLUE_PROMOTION|CAPABILITY_).*")
	commands := regexp.MustCompile(`(kubectl |lockstep (?:abort|adopt|disown|promote|undo) [^ ]+ ?)(-n [a-z]|apply )?`)
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			kind, message, _ := strings.Cut(line, ": ")
			if kind != "message" && kind != "end" {
				continue
			}
			assert.Empty(t, wrong.FindString(message), path)
			for _, command := range commands.FindAllStringSubmatch(message, -1) {
				if command[2] == "" {
					t.Errorf("%s: a command without a namespace: %q in %s", path, command[0], message)
				}
			}
		}
	}
}

// eachScenario passes the observation of each scenario of every file.
func eachScenario(t *testing.T, pass func(t *testing.T, d *datadriven.TestData, o Observation)) {
	t.Helper()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "plan" {
				pass(t, d, observed(t, d.Input))
			}
			return d.Expected
		})
	})
}

// observed parses an observation.
func observed(t *testing.T, text string) Observation {
	t.Helper()
	o, err := parseObservation(text)
	require.NoError(t, err)
	return o
}

func runScenarios(t *testing.T, path string) {
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == kindOfSmall || d.Cmd == kindOfRoles {
			world, acts, _ := strings.Cut(d.Input, "\n")
			return course{d.Cmd, world, strings.Split(acts, "\n")}.tell()
		}
		if d.Cmd != "plan" {
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
		o := observed(t, d.Input)
		first := reconcile(o)
		if second := reconcile(o); !reflect.DeepEqual(first, second) {
			d.Fatalf(t, "the same observation led to two decisions:\n%s%s", describe(o, first), describe(o, second))
		}
		return describe(o, first)
	})
}

// scenarioKey has the namespace of each workload in testdata and in small worlds.
var scenarioKey = types.NamespacedName{Namespace: "prod", Name: "vllm"}

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// line is one line of an observation: a word, a name, and attributes.
type line struct {
	word, name string
	attrs      map[string]string
}

func parseLine(text string) line {
	l := line{attrs: map[string]string{}}
	for i, field := range strings.Fields(text) {
		key, value, isPair := strings.Cut(field, "=")
		switch {
		case i == 0:
			l.word = field
		case isPair:
			l.attrs[key] = value
		case i == 1:
			l.name = field
			l.attrs[key] = ""
		default:
			l.attrs[key] = ""
		}
	}
	return l
}

func (l line) has(key string) bool { _, ok := l.attrs[key]; return ok }

func (l line) number(key string, unset int) int {
	value, ok := l.attrs[key]
	if !ok {
		return unset
	}
	if value == "" {
		return unset
	}
	n := 0
	if _, err := fmt.Sscanf(value, "%d", &n); err != nil {
		panic(fmt.Sprintf("%s=%s: %v", key, value, err))
	}
	return n
}

func (l line) age(key string) time.Time {
	value, ok := l.attrs[key]
	if !ok {
		return time.Time{}
	}
	return ago(value)
}

func (l line) duration(key string, unset time.Duration) time.Duration {
	if !l.has(key) {
		return unset
	}
	return noon.Sub(l.age(key))
}

func ago(age string) time.Time {
	d, err := time.ParseDuration(age)
	if err != nil {
		panic(err)
	}
	return noon.Add(-d)
}

func (l line) target() *record.Target {
	value, ok := l.attrs["target"]
	if !ok {
		return nil
	}
	groups, age, _ := strings.Cut(value, "@")
	groups, batch, inBatch := strings.Cut(groups, "#")
	t := &record.Target{Groups: groups, At: ago(age)}
	if inBatch {
		t.Batch = ptr.To(line{attrs: map[string]string{"batch": batch}}.number("batch", 0))
	}
	return t
}

func parseObservation(text string) (o Observation, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	o = Observation{Key: scenarioKey, Now: noon, Policy: record.Policy{Style: pb.Style_STYLE_CANARY, ProgressDeadline: record.DefaultProgressDeadline}}
	last := &o.Stable
	var routed *routing // it depends on groups that come after it
	for _, raw := range strings.Split(text, "\n") {
		switch l := parseLine(raw); l.word {
		case "workload":
			o.Stable = parseWorkload(l)
		case "canary":
			o.Added = append(o.Added, parseWorkload(l))
			last = &o.Added[len(o.Added)-1]
		case "record":
			o.Record, o.Succeeded = parseRecord(l), l.has("succeeded")
		case "policy":
			parsePolicy(l, &o.Policy)
		case "traffic":
			v := parseTraffic(l, o)
			routed = &v
			if o.Record != nil && o.Record.Release != nil && l.has("requested") {
				o.Record.Release.Traffic = &record.Traffic{Weight: l.number("requested", 0), Groups: l.number("for", 0)}
			}
		case "history":
			if o.HistoryLimit = 10; l.name == "unread" {
				o.HistoryUnread = true
				continue
			}
			o.History = append(o.History, parseEntry(l, len(o.History)+1))
		case "history-limit":
			o.HistoryLimit = line{attrs: map[string]string{"n": l.name}}.number("n", 0)
		case "drain":
			o.Policy.Drain = probe.Drain{Period: time.Minute}
			if !l.has("unanswered") {
				o.Drain = &Drain{Answer: Answer{Done: l.has("done"), Message: l.attrs["message"], Recheck: l.duration("recheck", 0)}}
			}
		case "autoscaler":
			o.Autoscalers = append(o.Autoscalers, parseAutoscaler(l))
		case "waiting":
			o.Waiting.Since = l.age("since")
		case "waited":
			o.Record.Release.Waiting = record.Waiting{
				For: l.attrs["for"], Since: l.age("since"), Overwritten: strings.ReplaceAll(l.attrs["overwritten"], "_", " "),
			}
		case "changes":
			o.UnsafeChanges = parseChanges(l)
		case "newer":
			o.Newer = l.name
		case "room":
			o.MaxInFlight = ptr.To(l.number("groups", 0))
		case "unscanned":
			o.Unscanned = &drivererr.Problem{Message: l.name}
		case "groups":
			last.Groups = append(last.Groups, parseGroups(l, last, o.Policy.MinReady)...)
		default:
			return o, fmt.Errorf("unknown line %q", raw)
		}
	}
	o = Judge(o)
	if !o.Waiting.Since.IsZero() {
		o.Waiting.For = o.askedFor()
	}
	if r := o.release(); r != nil && r.Waiting.For == "" && !r.Waiting.Since.IsZero() {
		r.Waiting.For = o.askedFor()
	}
	if routed != nil {
		o.Traffic = routed.observe(o)
	}
	if o.Drain != nil {
		o.Drain.Leaders = leadersOf(o.drainingGroups())
	}
	return o, nil
}

func parseEntry(l line, number int) Entry {
	e := Entry{
		Revision: l.name, Number: int64(l.number("number", number)), At: ago("1h"), By: l.attrs["by"], Release: "r-1", Owner: l.attrs["owner"],
		Outcome: Outcome(l.attrs["outcome"]), Ended: l.age("ended"), Problem: l.attrs["problem"],
	}
	if l.has("number") {
		e.At, e.Release = l.age("at"), l.attrs["release"]
	}
	return e
}

// parseChanges compares two templates.
func parseChanges(l line) []TemplateChange {
	var templates [2]record.Template
	for key, value := range l.attrs {
		values := strings.Split(value, "/")
		for i := range templates {
			t := &templates[i].LeaderWorkerTemplate
			switch key {
			case "size":
				t.Size = ptr.To(int32(line{attrs: map[string]string{key: values[i]}}.number(key, 1)))
			case "subdomain":
				templates[i].NetworkConfig = &lws.NetworkConfig{SubdomainPolicy: ptr.To(lws.SubdomainPolicy(values[i]))}
			case "claims":
				t.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: values[i]}}}
			default:
				panic(key)
			}
		}
	}
	return CompareTemplates(templates[0], templates[1])
}

func parseWorkload(l line) Workload {
	w := Workload{
		Name: l.name, Replicas: l.number("replicas", 0), Size: l.number("size", 2), Revision: l.attrs["revision"],
		Rolling:   rolling{Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromInt32(1), MaxSurge: intstr.FromInt32(0)},
		ChangedBy: l.attrs["changed-by"], Deleting: l.has("deleting"), Carries: l.attrs["carries"], Drifted: l.has("drifted"), Target: l.target(),
	}
	if recorded := l.attrs["recorded"]; recorded != "" {
		w.Recorded = strings.Split(recorded, ",")
	}
	if w.Autoscaled = l.has("autoscaled"); w.Autoscaled {
		w.ScaledBy = "kube-controller-manager"
	}
	if l.attrs["deleting"] != "" {
		w.DeletingSince = l.age("deleting")
	}
	if l.word == "canary" {
		w.ScaledBy = cmp.Or(l.attrs["scaled-by"], record.FieldManager)
		w.HasFinalizer, w.Lingers, w.Orphaned = !l.has("no-finalizer"), l.has("lingers"), l.has("orphaned")
		if !l.has("revision") {
			w.Revision = w.Carries
		}
	}
	if l.has("hold") {
		w.Rolling = record.Hold()
	}
	w.Observed, w.Orphans = !l.has("unobserved"), l.has("orphans")
	if r, ok := l.attrs["rolling"]; ok {
		w.Rolling = parseRolling(r)
	}
	return w
}

func parseRolling(text string) rolling {
	if text == "hold" {
		return record.Hold()
	}
	parts := strings.Split(text, "/")
	return rollingOf(line{attrs: map[string]string{"p": parts[0]}}.number("p", 0), parts[1], parts[2])
}

func parsePace(pace string) rolling {
	unavailable, surge, _ := strings.Cut(pace, "/")
	return rolling{
		Partition: ptr.To[int32](0), MaxUnavailable: intstr.Parse(unavailable), MaxSurge: intstr.Parse(surge),
	}
}

func parseRecord(l line) *record.Record {
	r := &record.Record{Version: 1, Saved: parsePace("1/0"), Workload: l.attrs["known-as"]}
	if saved, ok := l.attrs["saved"]; ok {
		r.Saved = parsePace(saved)
	}
	if l.has("set") {
		*r = r.WithSet(parseRolling(l.attrs["set"]))
	}
	r.Version = l.number("version", 1)
	if l.has("phase") {
		r.Release = &record.Release{
			ID: "r-1", Owner: l.attrs["owner"], Phase: record.Phase(l.attrs["phase"]), StableRevision: l.attrs["stable"],
			UpdateRevision: l.attrs["update"], StartedAt: ago("1h"), PhaseAt: l.age("since"), Target: l.target(),
		}
		if !l.has("since") {
			r.Release.PhaseAt = ago("1h")
		}
		r.Release.SplitEnded = l.has("splitEnded")
		if given, ok := l.attrs["forced"]; ok {
			r.Release.Force = true
			for _, index := range strings.Split(given, ",") {
				r.Release.GivenUp = append(r.Release.GivenUp, line{attrs: map[string]string{"i": index}}.number("i", 0))
			}
		}
		r.Release.Successor, r.Release.Groups = l.attrs["successor"], l.number("groups", 0)
		r.Release.Replicas = l.number("began-with", 0)
		if l.has("template") {
			r.Release.StableTemplate = &record.Template{}
		}
	}
	return r
}

func rollingOf(partition int, unavailable, surge string) rolling {
	r := parsePace(unavailable + "/" + surge)
	r.Partition = ptr.To(int32(partition))
	return r
}

func quantity(s string) record.Quantity { return must(record.ParseQuantity(s)) }

func parseRollouts(text string) []RolloutLabels {
	if text == "" {
		return nil
	}
	var all []RolloutLabels
	for one := range strings.SplitSeq(text, ",") {
		id, batch, _ := strings.Cut(one, "/")
		if id == "-" {
			id = ""
		}
		all = append(all, RolloutLabels{ID: id, Batch: line{attrs: map[string]string{"b": batch}}.number("b", 0)})
	}
	return all
}

// parseTraffic returns the routing of the observation so far.
func parseTraffic(l line, o Observation) routing {
	v := routing{
		isolated: l.has("isolated"), prepared: l.has("prepared"), handedOver: l.has("handed-over"), leaking: l.has("leaking"),
		endpointsLag: l.has("endpoints-lag"), weight: l.number("weight", 0), gone: l.has("gone"), blocked: l.has("blocked"),
		unread: l.has("unread"), stable: l.number("stable", o.Stable.Replicas),
	}
	v.seen = l.number("seen", v.weight)
	of := o.Stable.Name
	if !InPlace(o.Policy.Style) && len(o.Added) > 0 {
		of = o.Added[0].Name
	}
	if pods := l.attrs["pods"]; pods != "" {
		for index := range strings.SplitSeq(pods, ",") {
			v.pods = append(v.pods, of+"-"+index)
		}
	}
	return v
}

func parsePolicy(l line, p *record.Policy) {
	if l.has("style") {
		p.Style = pb.Style(pb.Style_value["STYLE_"+l.attrs["style"]])
	}
	if q, ok := l.attrs["threshold"]; ok {
		threshold, err := record.ParseQuantity(q)
		if err != nil {
			panic(err)
		}
		p.FailureThreshold = threshold
	}
	p.Adopt = l.has("adopt")
	p.RolloutID = l.attrs["rollout"]
	for q := range strings.SplitSeq(l.attrs["batches"], ",") {
		if q != "" {
			p.Batches = append(p.Batches, quantity(q))
		}
	}
	p.ProgressDeadline = l.duration("deadline", p.ProgressDeadline)
	p.MinReady = l.duration("min-ready", p.MinReady)
	p.ScaleDownDelay = l.duration("scale-down-delay", p.ScaleDownDelay)
}

func parseGroups(l line, w *Workload, minReady time.Duration) []Group {
	var first, last int
	if n, _ := fmt.Sscanf(l.name, "%d-%d", &first, &last); n == 1 {
		last = first
	}
	var out []Group
	for i := first; i <= last; i++ {
		g := Group{Index: i, Leader: fmt.Sprintf("%s-%d", w.Name, i), Revision: l.attrs["revision"], Pods: w.Size}
		if l.has("ready") {
			g.Ready, g.ReadySince, g.ReadyPods = true, l.age("ready"), w.Size
			if since := g.ReadySince.Add(minReady); !since.After(noon) {
				g.FirstReady = since
			}
		} else {
			g.Pod, g.Reason, g.Message = g.Leader, "PodMissing", "has not been created yet"
			if reason, ok := l.attrs["reason"]; ok {
				g.Reason, g.Message = reason, reason
			}
		}
		if l.has("first") {
			g.FirstReady = l.age("first")
		}
		g.LostAt, g.Serving, g.ReadyPods = l.age("lost"), l.has("serving"), l.number("ready-pods", g.ReadyPods)
		g.Terminating, g.Restarts = l.has("terminating"), l.number("restarts", 0)
		g.TerminatingReady = l.attrs["terminating"] == "ready"
		g.Rollouts = parseRollouts(l.attrs["rollouts"])
		out = append(out, g)
	}
	return out
}
