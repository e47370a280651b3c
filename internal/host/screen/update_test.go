// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestViewFitsEveryTerminal(t *testing.T) {
	t.Parallel()
	lost := Lost{From: FromDriver, Err: errors.New("away")}
	for _, options := range []Options{here, {}, {Only: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}, Unicode: true}} {
		for name, last := range map[string][]any{"list": nil, "detail": keys("enter", "G"), "help": keys("?"), "lost": {lost, lost}} {
			s := screenAfter(options, 80, 24, append(busy(), last...)...)
			for _, height := range []int{0, 1, 2, 3, 4, 5, 9, 10, 15, 16, 17, 24, 31} {
				for width := 0; width < 130; width += 1 + width/5 {
					s.Update(Size{width, height})
					fits(t, fmt.Sprintf("%s at %dx%d", name, width, height), s)
				}
			}
		}
	}
}

func fits(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, what string, s *Screen) {
	t.Helper()
	v := s.View()
	if v == "" && (s.width <= 0 || s.height <= 0) {
		return
	}
	lines := strings.Split(v, "\n")
	if len(lines) != s.height {
		t.Fatalf("%s: %d lines, want %d:\n%s", what, len(lines), s.height, v)
	}
	for _, line := range lines {
		if got := ansi.StringWidth(line); got > s.width {
			t.Fatalf("%s: a line of width %d: %q", what, got, line)
		}
		plain := ansi.Strip(line)
		if strings.ContainsFunc(plain, func(r rune) bool { return r < ' ' || !s.options.Unicode && r > '~' }) {
			t.Fatalf("%s: a line that this terminal can't draw: %q", what, plain)
		}
	}
}

func TestViewFitsAfterAnyMessages(t *testing.T) {
	t.Parallel()
	var names []string
	for _, b := range bindings() {
		if b.names[0] != "q" {
			names = append(names, b.names...)
		}
	}
	messages := append(busy(), listed(completed(upgrading("vllm"))), gone("vllm"), gone("bert"), gone("mistral"), gone("llama-405b"), Detail{failed()},
		Missing{errors.New("gone")}, Lost{From: FromDriver, Err: errors.New("away")}, Found{FromDriver}, Log("x\x1b[2J"),
		Tick(noon.Add(time.Hour)), NoEvents("no"))
	rapid.Check(t, func(t *rapid.T) {
		s := New(Options{Unicode: rapid.Bool().Draw(t, "unicode")}, noon)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				s.Update(Size{rapid.IntRange(-1, 130).Draw(t, "width"), rapid.IntRange(-1, 45).Draw(t, "height")})
			case 1:
				s.Update(Key(rapid.SampledFrom(names).Draw(t, "key")))
			default:
				s.Update(messages[rapid.IntRange(0, len(messages)-1).Draw(t, "message")])
			}
			fits(t, "after some messages", s)
		}
	})
}

func TestRevisionHasColourAndLetter(t *testing.T) {
	t.Parallel()
	for _, options := range []Options{here, {}} {
		s := screenAfter(options, 100, 30)
		a, b, lower := s.cell('A', true), s.cell('B', true), s.cell('B', false)
		if sgr(a) == sgr(b) || sgr(a) == "" || sgr(b) != sgr(lower) {
			t.Errorf("colours: A %q, B %q, b %q; want one for each revision", sgr(a), sgr(b), sgr(lower))
		}
		if plain := map[string]bool{ansi.Strip(a): true, ansi.Strip(b): true, ansi.Strip(lower): true, s.cell(0, false): true}; len(plain) != 4 {
			t.Errorf("without colour %v can't be told apart", plain)
		}
	}
}

// sgr returns the first escape sequence.
func sgr(text string) string {
	_, after, _ := strings.Cut(text, "\x1b[")
	code, _, _ := strings.Cut(after, "m")
	return code
}

func TestSelection(t *testing.T) {
	t.Parallel()
	s := screenAfter(here, 100, 30, busy()...)
	at := func(reason, want string) {
		t.Helper()
		if got := s.Selected().GetName(); got != want {
			t.Errorf("%s: selected %q, want %q", reason, got, want)
		}
	}
	at("the first one", "llama-405b")
	s.Update(Key("down"))
	at("down", "mistral")
	s.Update(Key("j"))
	s.Update(Key("j"))
	at("not below the last", "vllm")
	s.Update(listed(upgrading("aya")))
	at("a new row above keeps the selection", "vllm")
	s.Update(Key("home"))
	at("home", "aya")
	s.Update(Key("a"))
	s.Update(Key("j"))
	at("workloads at rest can be selected", "bert")
	s.Update(Key("a"))
	at("until they are hidden", "aya")
	s.Update(Key("enter"))
	s.Update(Key("j"))
	at("in the detail j scrolls", "aya")
	s.Update(Key("esc"))
	s.Update(Key("k"))
	at("esc shows the list", "aya")
	if s.Done() {
		t.Error("done before q")
	}
	s.Update(Key("q"))
	if !s.Done() {
		t.Error("not done after q")
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	shown := func(messages ...any) []string { return screenAfter(here, 100, 30, messages...).Summary() }
	run, done := listed(upgrading("vllm")), listed(completed(upgrading("vllm")))
	const upgrade = "default/vllm  upgrading: batch 2/3 (50%), 1/2 groups ready, stable 4/4 ready, canary gets 25% of requests, 50% requested"
	const complete = "default/vllm  completed: every group runs revision 7d4f5b6c8"
	cases := map[string]struct {
		reason   string
		messages []any
		want     []string
	}{
		"Running":  {"a running release is shown", []any{run, synced()}, []string{upgrade}},
		"Ended":    {"it is still shown after it ends", []any{run, done}, []string{complete}},
		"Over":     {"a release that ended before is not shown", []any{done, listed(resting("bert")), synced()}, []string{}},
		"Asked":    {"a release that ended before is shown on request", []any{done, synced(), Key("a")}, []string{complete}},
		"Gone":     {"a workload that is disowned is still shown", []any{run, gone("vllm")}, []string{"default/vllm  no longer under hold"}},
		"Returned": {"a workload that is adopted again is updated", []any{run, gone("vllm"), run}, []string{upgrade}},
		"Late":     {"only the list adds workloads", []any{run, gone("vllm"), Detail{upgrading("vllm")}}, []string{"default/vllm  no longer under hold"}},
		"Unseen":   {"a workload at rest that is disowned is not shown", []any{listed(resting("bert")), Key("a"), gone("bert")}, []string{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, shown(tc.messages...)); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestOnlyWorkloadIsMissing(t *testing.T) {
	t.Parallel()
	s := screenAfter(Options{Only: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}}, 100, 30, Detail{upgrading("vllm")}, Missing{errors.New("there is no LeaderWorkerSet default/vllm")})
	if v := s.View(); !strings.Contains(v, "there is no LeaderWorkerSet default/vllm; its state was upgrading") {
		t.Errorf("the screen does not say why:\n%s", v)
	}
	s.Update(Key("esc"))
	if s.Selected().GetName() != "vllm" || !s.open {
		t.Error("esc closed the only detail")
	}
}

func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	s := screenAfter(here, 100, 30, busy()...)
	for i := range 3 * maxEvents {
		s.Update(event("vllm", fmt.Sprint("more", i), "Normal", "More", "", time.Duration(i)*time.Second))
	}
	k := key{"default", "vllm"}
	if got := len(s.events[k]); got != maxEvents || s.events[k][0].ID != "more0" {
		t.Errorf("%d events are kept, the newest %q; want %d, the newest first", got, s.events[k][0].ID, maxEvents)
	}
	for _, e := range slices.Clone(s.events[k]) {
		e.Deleted = true
		s.Update(e)
	}
	if _, ok := s.events[k]; ok {
		t.Errorf("deleted events are kept: %v", s.events[k])
	}
}

func TestUnicode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		env  map[string]string
		want bool
	}{
		{map[string]string{"LANG": "en_GB.UTF-8"}, true},
		{map[string]string{"LANG": "de_DE.utf8"}, true},
		{map[string]string{"LANG": "C"}, false},
		{map[string]string{"LANG": "C.UTF-8", "LC_ALL": "C"}, false},
		{map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, true},
		{map[string]string{}, false},
	} {
		if got := Unicode(func(name string) string { return tc.env[name] }); got != tc.want {
			t.Errorf("Unicode(%v) = %t", tc.env, got)
		}
	}
}
