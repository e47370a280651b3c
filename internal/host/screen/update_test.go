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
			s := a(options, 80, 24, append(busy(), last...)...)
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

func TestWhateverComesFits(t *testing.T) {
	t.Parallel()
	var names []string
	for _, b := range bindings() {
		if b.names[0] != "q" {
			names = append(names, b.names...)
		}
	}
	news := append(busy(), listed(completed(upgrading("vllm"))), gone("vllm"), gone("bert"), gone("mistral"), gone("llama-405b"), Detail{failed()},
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
				s.Update(news[rapid.IntRange(0, len(news)-1).Draw(t, "news")])
			}
			fits(t, "after some news", s)
		}
	})
}

func TestRevisionIsColourAndLetter(t *testing.T) {
	t.Parallel()
	for _, options := range []Options{here, {}} {
		s := a(options, 100, 30)
		a, b, lower := s.cell('A', true), s.cell('B', true), s.cell('B', false)
		if sgr(a) == sgr(b) || sgr(a) == "" || sgr(b) != sgr(lower) {
			t.Errorf("colours: A %q, B %q, b %q; want one for each revision", sgr(a), sgr(b), sgr(lower))
		}
		if plain := map[string]bool{ansi.Strip(a): true, ansi.Strip(b): true, ansi.Strip(lower): true, s.cell(0, false): true}; len(plain) != 4 {
			t.Errorf("without colour %v can't be told apart", plain)
		}
	}
}

// sgr is the first escape sequence.
func sgr(text string) string {
	_, after, _ := strings.Cut(text, "\x1b[")
	code, _, _ := strings.Cut(after, "m")
	return code
}

func TestSelection(t *testing.T) {
	t.Parallel()
	s := a(here, 100, 30, busy()...)
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
	at("what comes above moves nothing", "vllm")
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
	at("esc is back in the list", "aya")
	if s.Done() {
		t.Error("nobody has left")
	}
	s.Update(Key("q"))
	if !s.Done() {
		t.Error("q leaves")
	}
}

func TestWhatIsShown(t *testing.T) {
	t.Parallel()
	shown := func(news ...any) []string { return a(here, 100, 30, news...).Last() }
	run, done := listed(upgrading("vllm")), listed(completed(upgrading("vllm")))
	const upgrade = "default/vllm  upgrading: batch 2/3 (50%), 1/2 groups ready, stable 4/4 ready, canary gets 25% of requests"
	const complete = "default/vllm  completed: every group runs revision 7d4f5b6c8"
	cases := map[string]struct {
		reason string
		news   []any
		want   []string
	}{
		"Running":  {"a release that runs", []any{run, synced()}, []string{upgrade}},
		"Ended":    {"stays when it ends", []any{run, done}, []string{complete}},
		"Over":     {"one that was over before is no news", []any{done, listed(resting("bert")), synced()}, []string{}},
		"Asked":    {"unless asked for", []any{done, synced(), Key("a")}, []string{complete}},
		"Gone":     {"a workload that goes stays with that", []any{run, gone("vllm")}, []string{"default/vllm  no longer under hold"}},
		"Returned": {"and is there again when it is", []any{run, gone("vllm"), run}, []string{upgrade}},
		"Late":     {"but only the list says so", []any{run, gone("vllm"), Detail{upgrading("vllm")}}, []string{"default/vllm  no longer under hold"}},
		"Unseen":   {"one at rest that goes just goes", []any{listed(resting("bert")), Key("a"), gone("bert")}, []string{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, shown(tc.news...)); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestOneWorkloadThatGoes(t *testing.T) {
	t.Parallel()
	s := a(Options{Only: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}}, 100, 30, Detail{upgrading("vllm")}, Missing{errors.New("there is no LeaderWorkerSet default/vllm")})
	if v := s.View(); !strings.Contains(v, "there is no LeaderWorkerSet default/vllm; it was upgrading") {
		t.Errorf("what became of it is not told:\n%s", v)
	}
	s.Update(Key("esc"))
	if s.Selected().GetName() != "vllm" || !s.open {
		t.Error("there is no list to go back to")
	}
}

func TestEventsAreForgotten(t *testing.T) {
	t.Parallel()
	s := a(here, 100, 30, busy()...)
	for i := range 3 * kept {
		s.Update(happening("vllm", fmt.Sprint("more", i), "Normal", "More", "", time.Duration(i)*time.Second))
	}
	k := key{"default", "vllm"}
	if got := len(s.events[k]); got != kept || s.events[k][0].ID != "more0" {
		t.Errorf("%d events are kept, the newest %q; want %d, the newest first", got, s.events[k][0].ID, kept)
	}
	for _, e := range slices.Clone(s.events[k]) {
		e.Deleted = true
		s.Update(e)
	}
	if _, ok := s.events[k]; ok {
		t.Errorf("deleted events are remembered: %v", s.events[k])
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
