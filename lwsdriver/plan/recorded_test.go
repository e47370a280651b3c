// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// recordings are observations of the real controllers, made by the end-to-end suites: those that are kept, or all that a run of a
// suite left in the directory that LOCKSTEP_TEST_RECORDINGS names.
var recordings = flag.String("recordings", "../replay/testdata/*.jsonl*", "files with the recordings whose paths the model must have")

// lossesOf says how many ready groups a recorded test took, beside those that the driver restarted.
var lossesOf = map[string]int{"canary-budget-counts-groups": 1}

// TestRecordingsArePaths checks that the model of LWS and of the StatefulSet controller, which the explorer relies on, does what the
// real ones did: each recorded observation of a set is reached from the one before by steps of the model. What the driver
// and the user write is taken from the recording; what the controllers keep for themselves is guessed in every way.
func TestRecordingsArePaths(t *testing.T) {
	files, err := filepath.Glob(*recordings)
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".jsonl")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			losses := 0
			for _, set := range recordedSets(t, file) {
				lost, err := set.follow()
				if err != nil {
					t.Errorf("%s: %v", set.name, err)
				}
				losses += lost
			}
			if losses != lossesOf[name] {
				t.Errorf("%d ready groups were lost for no reason that the model has, want %d", losses, lossesOf[name])
			}
		})
	}
}

// spec is what others than the controllers write.
type spec struct {
	replicas             uint8
	rolling              uint8
	template             revision
	deleting, foreground bool
}

// sight is an observation of a set.
type sight struct {
	line   int
	spec   int // the index of the newest spec that it shows
	groups [maxIndices]member
	// restarted are the groups that the driver restarts with the decision about it.
	restarted [maxIndices]bool
}

// recordedSet is the history of a set.
type recordedSet struct {
	name   string
	w      *world
	specs  []spec
	sights []sight
	names  []string // of the revisions, from 1
}

// entry is a line of a recording.
type entry struct {
	line        int
	Observation Observation
	Decision    struct {
		Action string
		Write  RestartGroup
	}
}

// recordedSets reads the history of each set of a recording.
func recordedSets(t *testing.T, path string) []*recordedSet {
	t.Helper()
	file := must(os.Open(path))
	defer func() { _ = file.Close() }()
	var entries []entry
	var raw io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		raw = must(gzip.NewReader(file))
	}
	for lines := json.NewDecoder(raw); lines.More(); {
		e := entry{line: len(entries) + 1}
		if err := lines.Decode(&e); err != nil {
			t.Fatalf("line %d: %v", e.line, err)
		}
		entries = append(entries, e)
	}
	// Decisions made at the same time are not written in the order of their observations.
	slices.SortStableFunc(entries, func(a, b entry) int { return a.Observation.Now.Compare(b.Observation.Now) })
	var sets []*recordedSet
	for _, e := range entries {
		for _, seen := range append(e.Observation.Added, e.Observation.Stable) {
			name := e.Observation.Key.Namespace + "/" + seen.Name
			i := slices.IndexFunc(sets, func(s *recordedSet) bool { return s.name == name })
			if i < 0 {
				i = len(sets)
				sets = append(sets, &recordedSet{name: name, w: &world{}})
			}
			restarted := ""
			if e.Decision.Action == "RestartGroup" {
				restarted = e.Decision.Write.Leader
			}
			if err := sets[i].see(e.line, seen, restarted); err != nil {
				t.Fatalf("line %d: %s: %v", e.line, name, err)
			}
		}
	}
	return sets
}

// see adds an observation.
func (s *recordedSet) see(line int, seen Workload, restarted string) error {
	if seen.Revision == "" || seen.Orphaned {
		return nil // LWS has not acted on its template yet
	}
	now := sight{line: line}
	for _, g := range seen.Groups {
		if g.Index >= maxIndices {
			return fmt.Errorf("the small world has %d groups, not group %d", maxIndices, g.Index)
		}
		now.restarted[g.Index] = g.Leader == restarted
		if !g.Terminating { // the model deletes a group at once
			now.groups[g.Index] = member{revision: s.number(g.Revision), ready: g.Ready}
		}
	}
	is := spec{uint8(seen.Replicas), s.w.rolling(seen.Rolling), s.number(seen.Revision), seen.Deleting, !seen.Lingers}
	if len(s.specs) == 0 || s.specs[len(s.specs)-1] != is {
		s.specs = append(s.specs, is)
	}
	now.spec = len(s.specs) - 1
	s.sights = append(s.sights, now)
	return nil
}

// number returns the number of a revision, 0 for none.
func (s *recordedSet) number(name string) revision {
	if name == "" {
		return 0
	}
	i := slices.Index(s.names, name)
	if i < 0 {
		i = len(s.names)
		s.names = append(s.names, name)
	}
	return revision(i + 1)
}

// guess is a state of the model that explains what was seen: the set, and the index of the spec that its controllers know.
type guess struct {
	set  lwset
	spec int
}

// begin returns every state of the controllers' own that the first observation allows.
func (s *recordedSet) begin() map[guess]int {
	first, existing := s.sights[0], uint8(0)
	for i := range first.groups {
		if first.groups[i].revision != 0 {
			existing = uint8(i + 1)
		}
	}
	guesses := map[guess]int{}
	if existing == 0 {
		guesses[s.knows(guess{}, 0)] = 0
		return guesses
	}
	for p := range maxIndices + 2 {
		leaders := leaderSet{exists: true, replicas: existing, noted: s.specs[0].replicas, partition: uint8(p), unavailable: 1}
		if p > maxIndices {
			leaders.partition = holdPartition
		}
		for update := range s.names {
			for current := range s.names {
				leaders.update, leaders.current = revision(update+1), revision(current+1)
				guesses[s.knows(guess{set: lwset{leaders: leaders, groups: first.groups}}, 0)] = 0
			}
		}
	}
	return guesses
}

// knows returns the guess with the spec of an index.
func (s *recordedSet) knows(g guess, i int) guess {
	is := s.specs[i]
	g.spec = i
	g.set.exists, g.set.replicas, g.set.rolling, g.set.template = true, is.replicas, is.rolling, is.template
	g.set.deleting, g.set.foreground = is.deleting, is.foreground
	return g
}

// maxLosses bounds the groups that are lost without a cause between two observations.
const maxLosses = 3

// follow returns how many groups the set lost for no reason of the model's, at least, or an error if no states of the model follow one
// another as the observations did.
func (s *recordedSet) follow() (losses int, err error) {
	if len(s.sights) == 0 {
		return 0, nil
	}
	guesses := s.begin()
	for i, next := range s.sights {
		last := s.sights[max(i-1, 0)]
		if i > 0 && last.groups == next.groups && last.spec == next.spec && last.restarted == [maxIndices]bool{} {
			continue
		}
		reached := s.reach(guesses, last, next)
		if len(reached) == 0 {
			return losses, fmt.Errorf("line %d: no state of the model has %s after %s", next.line, s.describe(next), s.describe(last))
		}
		guesses = reached
		losses = slices.Min(slices.Collect(maps.Values(guesses)))
	}
	return losses, nil
}

// reach returns the states that show the next observation, with the fewest losses to each.
func (s *recordedSet) reach(from map[guess]int, last, next sight) map[guess]int {
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
			if g.set.groups == next.groups && g.spec >= next.spec {
				reached[g] = least + n
			}
			s.step(g, last, next, func(to guess, lost int) {
				if lost += n; lost > maxLosses {
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

// step passes to yield what may follow a state, and how many groups that loses for no reason of the model's.
func (s *recordedSet) step(g guess, last, next sight, yield func(guess, int)) {
	if known := min(next.spec+1, len(s.specs)-1); g.spec < known { // the cache of pods may be ahead of that of sets
		yield(s.knows(g, g.spec+1), 0)
	}
	to := g
	s.w.reconcile(&to.set)
	to.set.observed = false
	yield(to, 0)
	// A StatefulSet waits for a leader and not for its workers, so a group that starts may stop it or not.
	s.run(g, false, yield)
	s.run(g, true, yield)
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
		if to.set.groups[i] = (member{}); last.restarted[i] || !m.ready {
			yield(to, 0)
		} else {
			yield(to, 1)
		}
	}
}

// run is a pass of the StatefulSet controller, of which an observation may show any part.
func (s *recordedSet) run(g guess, parallel bool, yield func(guess, int)) {
	to := g
	s.w.parallel = parallel
	s.w.run(&to.set)
	var changed []int
	for i := range to.set.groups {
		m := &to.set.groups[i]
		*m = member{revision: m.revision, ready: m.ready}
		if *m != g.set.groups[i] {
			changed = append(changed, i)
		}
	}
	for part := range 1 << len(changed) {
		seen := to
		for k, i := range changed {
			if part&(1<<k) != 0 {
				seen.set.groups[i] = g.set.groups[i]
			}
		}
		yield(seen, 0)
	}
}

// describe returns an observation in words.
func (s *recordedSet) describe(seen sight) string {
	is := s.specs[seen.spec]
	r := s.w.rollings.values[is.rolling]
	words := []string{fmt.Sprintf("replicas=%d partition=%d own=%s/%s template=%s", is.replicas, *r.Partition, r.MaxUnavailable.String(), r.MaxSurge.String(), is.template)}
	if is.deleting {
		words = append(words, "deleting")
	}
	for i, m := range seen.groups {
		switch {
		case m.ready:
			words = append(words, fmt.Sprintf("%d:%s", i, m.revision))
		case m.revision != 0:
			words = append(words, fmt.Sprintf("%d:%s(starts)", i, m.revision))
		}
	}
	return strings.Join(words, " ")
}
