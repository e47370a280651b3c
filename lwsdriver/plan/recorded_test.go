// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
)

// recordings are files with observations of the real controllers, written by the end-to-end suites: by default the ones in testdata, or the
// directory of LOCKSTEP_TEST_RECORDINGS after a run of a suite.
var recordings = flag.String("recordings", "../replay/testdata/*.jsonl*", "files with the recordings whose paths the model must have")

// lossesOf is the number of ready groups that a recorded test deleted itself.
var lossesOf = map[string]int{"canary-budget-counts-groups": 1}

// leftOutOf are the sets of the kept recordings that are larger than the model, why, and from which line on they are left out.
var leftOutOf = map[string][]string{
	"disaggregated-slices": {
		"driver 0, testdisaggregatedslices-7nz7d/llm: 3 slices from line 273 on",
		"driver 0, testdisaggregatedslices-7nz7d/llm-e503fce5: 3 slices from line 309 on",
	},
}

// TestRecordingsArePaths checks that the model of LWS and of the StatefulSet controller, which the explorer relies on, does what the
// real ones did: each recorded observation is reached from the one before by steps of the model. What the driver and the
// user write is taken from the recording; what the controllers keep for themselves is guessed in every way.
func TestRecordingsArePaths(t *testing.T) {
	files, err := filepath.Glob(*recordings)
	require.True(t, err == nil && len(files) != 0, "no recordings: %v", err)
	kept := flag.Lookup("recordings").DefValue == *recordings
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".jsonl")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			followed, losses := 0, 0
			var left []string
			for _, set := range recordedSets(t, file) {
				if set.large != "" {
					left = append(left, set.name+": "+set.large)
				}
				lost, err := set.follow()
				if err != nil {
					t.Errorf("%s: %v", set.name, err)
				}
				followed, losses = followed+len(set.sights), losses+lost
			}
			t.Logf("%d observations, %d ready groups lost; larger than the model: %q", followed, losses, left)
			if kept {
				assert.Equal(t, leftOutOf[name], left, "larger than the model")
			}
			assert.False(t, kept && (losses != lossesOf[name] || followed == 0),
				"of %d observations, %d ready groups were lost for no reason that the model has, want %d", followed, losses, lossesOf[name])
		})
	}
}

// entry is a line of a recording.
type entry struct {
	line        int
	driver      int // the number of the driver that wrote it: a test may have several, one after another in the file
	Observation Observation
	Decision    struct {
		Action string
		Write  struct { // of RestartGroup and ScaleChild
			Leader   string
			Name     string
			Replicas int
		}
	}
}

// recordedSets reads the history of each set of a recording: the LeaderWorkerSets of users, added LeaderWorkerSets, and DisaggregatedSets.
func recordedSets(t *testing.T, path string) (sets []*history) {
	t.Helper()
	file := must(os.Open(path))
	defer func() { _ = file.Close() }()
	var raw io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		raw = must(gzip.NewReader(file))
	}
	var entries []entry
	lines := bufio.NewScanner(raw)
	lines.Buffer(nil, 64<<20)
	for line := 1; lines.Scan(); line++ {
		e := entry{line: line}
		var other *json.UnmarshalTypeError // the write of another kind has a field of this name
		switch err := json.NewDecoder(bytes.NewReader(lines.Bytes())).Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			continue // an empty line, or one that a driver wrote when it was killed
		case err != nil && (!errors.As(err, &other) || !strings.HasPrefix(other.Field, "Decision.")):
			t.Fatalf("line %d: %v", line, err)
		}
		if len(entries) > 0 {
			last := entries[len(entries)-1]
			if e.driver = last.driver; last.Observation.Now.Sub(e.Observation.Now) > time.Second {
				e.driver++
			}
		}
		entries = append(entries, e)
	}
	require.NoError(t, lines.Err())
	// Decisions made at the same time are not written in the order of their observations.
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(a.driver-b.driver, a.Observation.Now.Compare(b.Observation.Now))
	})
	for _, e := range entries {
		seen := append(e.Observation.Added, e.Observation.Stable)
		for _, w := range seen {
			name := fmt.Sprintf("driver %d, %s/%s", e.driver, e.Observation.Key.Namespace, w.Name)
			i := slices.IndexFunc(sets, func(h *history) bool { return h.name == name })
			if i < 0 {
				i = len(sets)
				sets = append(sets, &history{name: name})
			}
			if len(e.Observation.Roles) > 0 {
				sets[i].seeRoles(e)
			} else {
				sets[i].see(e, w)
			}
		}
	}
	return sets
}

// spec is what others than the controllers write.
type spec struct {
	// of a LeaderWorkerSet
	replicas, rolling    uint8
	deleting, foreground bool
	// of both kinds
	template revision
	// of a DisaggregatedSet
	wanted [rolesOf]uint8
	three  bool
	slices uint8
	bounds string
}

// seen is what an observation shows of the groups of a LeaderWorkerSet, or of the children of a DisaggregatedSet.
type seen struct {
	groups   [maxIndices]member
	children [revisions + 1][slicesOf][rolesOf]roleChild
}

// sight is an observation.
type sight struct {
	entry
	spec int // the index of the newest spec that it shows
	seen seen
}

// history is what the recording has of a set.
type history struct {
	name   string
	roles  bool // it is a DisaggregatedSet
	w      world
	specs  []spec
	sights []sight
	names  []string // of the revisions, from 1
	large  string   // what it has more than the small world, and from which line on, "" for nothing
}

// see adds an observation of a LeaderWorkerSet.
func (h *history) see(e entry, w Workload) {
	if w.Revision == "" || w.Orphaned || h.large != "" {
		return // LWS has not acted on its template yet
	}
	if h.limit(e, "groups with those of maxSurge", w.Replicas+native.LimitsOf(w.Rolling, w.Replicas).MaxSurge, maxIndices) {
		return
	}
	var now seen
	for _, g := range w.Groups {
		if h.limit(e, "groups", g.Index+1, maxIndices) {
			return
		}
		if !g.Terminating { // the model deletes a group at once
			now.groups[g.Index] = member{revision: h.number(g.Revision), ready: g.Ready}
		}
	}
	h.add(e, now, spec{
		replicas: uint8(w.Replicas), rolling: h.w.rolling(w.Rolling), template: h.number(w.Revision), deleting: w.Deleting, foreground: !w.Lingers,
	})
}

// seeRoles adds an observation of a DisaggregatedSet.
func (h *history) seeRoles(e entry) {
	o := e.Observation
	if h.roles = true; o.Stable.Revision == "" || o.RolesWaiting != "" {
		return // LWS has not acted on its template yet, or creates no children for it
	}
	is := spec{template: h.number(o.Stable.Revision), slices: uint8(o.Slices), three: len(o.Roles) == rolesOf}
	if h.limit(e, "slices", o.Slices, slicesOf) || h.limit(e, "revisions", len(h.names), revisions) || h.limit(e, "roles", len(o.Roles), rolesOf) {
		return
	}
	others, unsized := max(2-len(o.Roles), 0), 0
	for _, r := range o.Roles {
		i := slices.Index(roleNames[:], r.Name)
		if i < 0 {
			others++
		}
		if r.Unsized != "" {
			unsized++
		}
		if h.limit(e, "roles that the model lacks", others, 0) || h.limit(e, "roles without a number", unsized, 0) ||
			h.limit(e, "groups of a role", r.Replicas, maxIndices) {
			return
		}
		is.wanted[i] = uint8(r.Replicas)
	}
	if o.Bounds != nil {
		b := *o.Bounds
		b.Stable, b.Update, b.Target = h.number(b.Stable).String(), h.number(b.Update).String(), nil
		is.bounds = encodeJSON(b)
	}
	var now seen
	for _, c := range o.Children {
		i, r := slices.Index(roleNames[:], c.Role), h.number(c.Revision)
		if i < 0 || h.limit(e, "slices", c.Slice+1, slicesOf) || h.limit(e, "groups of a child", c.Replicas, 8) || h.limit(e, "revisions", int(r), revisions) {
			_ = h.limit(e, "roles that the model lacks", 1, 0)
			return
		}
		if c.Deleting {
			continue // the model deletes a child at once
		}
		child := roleChild{exists: true, replicas: uint8(c.Replicas)}
		for _, g := range c.Groups {
			if g.Ready && g.Index < c.Replicas {
				child.ready |= 1 << g.Index
			}
		}
		now.children[r][c.Slice][i] = child
	}
	h.add(e, now, is)
}

// limit reports whether an observation is left out, since the set has more of something than the small world, or had before.
func (h *history) limit(e entry, what string, n, most int) bool {
	if h.large == "" && n > most {
		h.large = fmt.Sprintf("%d %s from line %d on", n, what, e.line)
	}
	return h.large != ""
}

func (h *history) add(e entry, now seen, is spec) {
	if len(h.specs) == 0 || h.specs[len(h.specs)-1] != is {
		h.specs = append(h.specs, is)
	}
	h.sights = append(h.sights, sight{entry: e, spec: len(h.specs) - 1, seen: now})
}

// number returns the number of a revision, 0 for none.
func (h *history) number(name string) revision {
	if name == "" {
		return 0
	}
	i := slices.Index(h.names, name)
	if i < 0 {
		i = len(h.names)
		h.names = append(h.names, name)
	}
	return revision(i + 1)
}

// guess is a state of the model that explains what was seen, of either kind, with the index of the spec that its controllers know.
type guess struct {
	set   lwset
	roles roleState
	spec  int
}

func (g guess) shows() seen { return seen{g.set.groups, g.roles.children} }

// turns reports whether a group or a child is not as it was before and will be again.
func (s seen) turns(last, next seen) bool {
	for i := range s.groups {
		if s.groups[i] != next.groups[i] && last.groups[i] == next.groups[i] {
			return true
		}
	}
	for r := range s.children {
		for slice := range s.children[r] {
			for role, c := range s.children[r][slice] {
				if c != next.children[r][slice][role] && last.children[r][slice][role] == next.children[r][slice][role] {
					return true
				}
			}
		}
	}
	return false
}

// begin returns every state of the controllers' own that the first observation allows.
func (h *history) begin() map[guess]int {
	first, existing := h.sights[0].seen, uint8(0)
	for i := range first.groups {
		if first.groups[i].revision != 0 {
			existing = uint8(i + 1)
		}
	}
	guesses := map[guess]int{}
	if existing == 0 {
		guesses[h.knows(guess{roles: roleState{children: first.children, walk: true}}, 0)] = 0
		return guesses
	}
	for p := range maxIndices + 2 {
		leaders := leaderSet{exists: true, replicas: existing, noted: h.specs[0].replicas, partition: uint8(p), unavailable: 1}
		if p > maxIndices {
			leaders.partition = holdPartition
		}
		for update := range h.names {
			for current := range h.names {
				leaders.update, leaders.current = revision(update+1), revision(current+1)
				guesses[h.knows(guess{set: lwset{leaders: leaders, groups: first.groups}}, 0)] = 0
			}
		}
	}
	return guesses
}

// knows returns the guess with the spec of an index.
func (h *history) knows(g guess, i int) guess {
	is := h.specs[i]
	g.spec = i
	if h.roles {
		g.roles.template, g.roles.wanted, g.roles.three, g.roles.slices, g.roles.bounds = is.template, is.wanted, is.three, is.slices, is.bounds
		return g
	}
	g.set.exists, g.set.replicas, g.set.rolling, g.set.template = true, is.replicas, is.rolling, is.template
	g.set.deleting, g.set.foreground = is.deleting, is.foreground
	return g
}

// maxLosses bounds the groups that are lost without a cause between two observations.
const maxLosses = 3

// follow returns how many ready groups the set lost for no reason of the model's, at least, or an error if no states of the model follow
// one another as the observations did.
func (h *history) follow() (losses int, err error) {
	if len(h.sights) == 0 {
		return 0, nil
	}
	guesses := h.begin()
	for i, next := range h.sights {
		last := h.sights[max(i-1, 0)]
		if i > 0 && last.seen == next.seen && last.spec == next.spec {
			continue
		}
		reached := h.reach(guesses, last, next, true)
		if len(reached) == 0 {
			reached = h.reach(guesses, last, next, false)
		}
		if len(reached) == 0 {
			return losses, fmt.Errorf("line %d: no state of the model has %s after %s", next.line, h.describe(next), h.describe(last))
		}
		guesses = reached
		losses = slices.Min(slices.Collect(maps.Values(guesses)))
	}
	return losses, nil
}

// reach returns the states that show the next observation, with the fewest losses to each. still: what looks the same in both did not
// change in between, which is nearly always so and leaves few states.
func (h *history) reach(from map[guess]int, last, next sight, still bool) map[guess]int {
	least := slices.Min(slices.Collect(maps.Values(from)))
	reached, known := map[guess]int{}, maps.Clone(from)
	queues := make([][]guess, maxLosses+1) // by further losses
	for g, n := range from {
		if n-least <= maxLosses {
			queues[n-least] = append(queues[n-least], g)
		}
	}
	for n := range queues {
		for len(queues[n]) > 0 {
			g := queues[n][0]
			queues[n] = queues[n][1:]
			if known[g] < least+n {
				continue
			}
			if g.shows() == next.seen && g.spec >= next.spec {
				reached[g] = least + n
			}
			h.step(g, last, next, still, func(to guess, lost int) {
				if lost += n; lost > maxLosses || still && to.shows().turns(last.seen, next.seen) {
					return
				}
				if before, ok := known[to]; !ok || least+lost < before {
					known[to] = least + lost
					queues[lost] = append(queues[lost], to)
				}
			})
		}
		if len(reached) > 0 {
			break
		}
	}
	return reached
}

// step passes to yield what may follow a state, and how many ready groups that loses for no reason of the model's.
func (h *history) step(g guess, last, next sight, still bool, yield func(guess, int)) {
	// The cache of pods may be ahead of that of sets, by far if a test holds its watch back.
	known := len(h.specs) - 1
	if still {
		known = min(known, next.spec+1)
	}
	if g.spec < known {
		yield(h.knows(g, g.spec+1), 0)
	}
	if h.roles {
		h.stepRoles(g, last, yield)
		return
	}
	to := g
	h.w.reconcile(&to.set)
	to.set.observed = false
	yield(to, 0)
	// A StatefulSet waits for a leader and not for its workers, so a group that starts may stop it or not.
	h.run(g, false, yield)
	h.run(g, true, yield)
	for i := range g.set.groups {
		m := g.set.groups[i]
		if m.revision == 0 {
			continue
		}
		if to = g; !m.ready {
			to.set.groups[i].ready = true
			yield(to, 0)
		} else {
			to.set.groups[i].ready = false
			yield(to, 1)
		}
		// A group that starts is lost for nothing: LWS recreates it when a worker of the group before ends late.
		restarts := last.Decision.Action == "RestartGroup" && strings.HasSuffix(last.Decision.Write.Leader, fmt.Sprint("-", i))
		if to.set.groups[i] = (member{}); restarts || !m.ready {
			yield(to, 0)
		} else {
			yield(to, 1)
		}
	}
}

// run is a pass of the StatefulSet controller, of which an observation may show any part.
func (h *history) run(g guess, parallel bool, yield func(guess, int)) {
	to := g
	h.w.parallel = parallel
	h.w.run(&to.set)
	var changed []int
	for i := range to.set.groups {
		m := &to.set.groups[i]
		*m = member{revision: m.revision, ready: m.ready}
		if *m != g.set.groups[i] {
			changed = append(changed, i)
		}
	}
	for part := range 1 << len(changed) {
		half := to
		for k, i := range changed {
			if part&(1<<k) != 0 {
				half.set.groups[i] = g.set.groups[i]
			}
		}
		yield(half, 0)
	}
}

// stepRoles is step for a DisaggregatedSet.
func (h *history) stepRoles(g guess, last sight, yield func(guess, int)) {
	for _, s := range g.roles.others() {
		if to := g; s.own {
			to.roles = s.next
			yield(to, 0)
		}
	}
	for r, m := range g.roles.all() {
		c := g.roles.at(r, m)
		for i := range c.replicas {
			to := g
			if to.roles.at(r, m).ready ^= 1 << i; c.ready&(1<<i) == 0 {
				yield(to, 0)
			} else {
				yield(to, 1)
			}
		}
		// LWS deletes the children of the roles one after another. One with groups is deleted by another client.
		if to := g; c.exists {
			*to.roles.at(r, m) = roleChild{}
			yield(to, min(int(c.replicas), 1))
		}
		if w := last.Decision; w.Action == "ScaleChild" && c.exists && strings.HasSuffix(w.Write.Name, h.names[r-1]+"-"+roleNames[m.role]) {
			to := g
			to.roles = g.roles.scale(r, m, uint8(w.Write.Replicas))
			yield(to, 0)
		}
	}
}

// describe returns an observation in words.
func (h *history) describe(at sight) string {
	is := h.specs[at.spec]
	words := []string{"template " + is.template.String()}
	if h.roles {
		words = append(words, fmt.Sprintf("roles %d slices %d bounds %s", is.wanted, is.slices, is.bounds))
		s := roleState{children: at.seen.children}
		for r, m := range s.all() {
			if c := s.at(r, m); c.exists {
				words = append(words, fmt.Sprintf("%s of %s: %d, ready %b", m, r, c.replicas, c.ready))
			}
		}
		return strings.Join(words, ", ")
	}
	r := h.w.rollings.values[is.rolling]
	words = append(words, fmt.Sprintf("replicas %d own %s/%s", is.replicas, r.MaxUnavailable.String(), r.MaxSurge.String()))
	if r.Partition != nil {
		words = append(words, fmt.Sprint("partition ", *r.Partition))
	}
	if is.deleting {
		words = append(words, "deleting")
	}
	for i, m := range at.seen.groups {
		if m.revision != 0 {
			words = append(words, fmt.Sprintf("group %d of %s, ready %t", i, m.revision, m.ready))
		}
	}
	return strings.Join(words, ", ")
}
