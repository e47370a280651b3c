// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Options are what does not change while the screen is up.
type Options struct {
	// Only is the one workload that is looked at. Nil: all under hold.
	Only *pb.WorkloadRef
	// Namespace is the only one that is looked at. Empty: all, and then names have their namespace before them.
	Namespace string
	// Unicode is true on terminals that draw more than ASCII.
	Unicode bool
	// NoEvents is why there are no Kubernetes events. Empty: there are.
	NoEvents string
}

// Screen is the state of what is shown. It is used by one goroutine.
type Screen struct {
	options Options
	glyphs  glyphs

	width, height int
	now           time.Time

	rows   map[key]*row
	events map[key][]Event
	// cellsDrawn are those that were needed so far.
	cellsDrawn map[look]string
	// synced is true once it is known which workloads there are.
	synced bool
	// lost is since when, and why, nothing comes from somewhere.
	lost map[Source]loss
	log  logLine

	selected key
	// all shows workloads at rest too, open the detail only, help the keys.
	all, open, help bool
	scroll          int
	done            bool
}

type key struct{ namespace, name string }

func keyOf(ref *pb.WorkloadRef) key { return key{ref.GetNamespace(), ref.GetName()} }

func (k key) String() string { return k.namespace + "/" + k.name }

// row is one workload.
type row struct {
	context *pb.BatchContext
	// groups are as the newest Detail had them.
	groups []*pb.Group
	// live is true once a release of it was seen running: it stays on the screen when that ends.
	live bool
	// ended is when it was first seen not to run any more. Zero: it runs, or was never seen running.
	ended time.Time
	// gone is why there will be no more news of it. Empty: there will.
	gone string
}

type loss struct {
	since time.Time
	err   error
}

type logLine struct {
	at   time.Time
	text string
}

// New returns an empty screen.
func New(options Options, now time.Time) *Screen {
	s := &Screen{
		options: options, glyphs: asciiGlyphs, now: now,
		rows: map[key]*row{}, events: map[key][]Event{}, lost: map[Source]loss{}, cellsDrawn: map[look]string{},
	}
	if options.Unicode {
		s.glyphs = unicodeGlyphs
	}
	if options.Only != nil {
		s.selected, s.open = keyOf(options.Only), true
	}
	return s
}

// Done says whether somebody wants to leave.
func (s *Screen) Done() bool { return s.done }

// Selected is the workload whose Detail is shown. Nil: none.
func (s *Screen) Selected() *pb.WorkloadRef {
	if r := s.rows[s.selected]; r != nil {
		return r.context.GetWorkload()
	}
	return s.options.Only
}

// Last is where everything stood that is on the screen, a line each: for the terminal that is there again when the screen
// has gone.
func (s *Screen) Last() []string {
	keys := s.visible()
	lines := make([]string, len(keys))
	for i, k := range keys {
		lines[i] = k.String() + "  " + s.rows[k].outcome()
	}
	return lines
}

func (r *row) outcome() string {
	if r.gone != "" {
		return r.gone
	}
	return view.Progress(r.context)
}

// Update takes one piece of news, a key or the time.
func (s *Screen) Update(news any) {
	switch n := news.(type) {
	case Size:
		s.width, s.height = n.Width, n.Height
	case Tick:
		s.now = time.Time(n)
	case Key:
		s.press(string(n))
	case Change:
		s.change(n)
	case Detail:
		s.detailed(n)
	case Missing:
		if r := s.rows[s.selected]; r != nil {
			s.end(r, view.OneLine(n.Err.Error()))
		}
		delete(s.lost, FromDriver)
	case Lost:
		s.lose(n)
	case Found:
		delete(s.lost, n.From)
	case Event:
		s.note(n)
	case NoEvents:
		s.options.NoEvents = view.OneLine(string(n))
	case Log:
		s.log = logLine{s.now, view.OneLine(string(n))}
	}
	s.choose()
	s.scroll = max(min(s.scroll, s.furthest()), 0)
}

func (s *Screen) change(n Change) {
	delete(s.lost, FromDriver)
	switch change := n.GetChange().(type) {
	case *pb.WatchWorkloadsResponse_Context:
		s.take(change.Context)
	case *pb.WatchWorkloadsResponse_Removed:
		if r := s.rows[keyOf(change.Removed)]; r != nil {
			s.end(r, notHeld)
		}
	case *pb.WatchWorkloadsResponse_Synced:
		s.synced = true
	}
}

// detailed takes what is known of the workload that is looked at. Which ones there are is for the other stream to say: this
// one goes on for a workload that is under hold no more.
func (s *Screen) detailed(n Detail) {
	delete(s.lost, FromDriver)
	if r := s.rows[keyOf(n.GetWorkload())]; s.options.Only == nil && (r == nil || r.gone != "") {
		return
	}
	s.take(n.BatchContext).groups = n.GetGroups()
	s.synced = true
}

// notHeld is what is known of a workload that the driver has no more news of.
const notHeld = "no longer under hold"

// take puts a context where it belongs.
func (s *Screen) take(c *pb.BatchContext) *row {
	k := keyOf(c.GetWorkload())
	r := s.rows[k]
	if r == nil {
		r = &row{}
		s.rows[k] = r
	}
	running := view.Running(c)
	switch {
	case running:
		r.live, r.ended = true, time.Time{}
	case r.live && r.ended.IsZero():
		r.ended = s.now
	}
	r.context, r.gone = c, ""
	return r
}

// end keeps what was seen of a workload that there is no more news of.
func (s *Screen) end(r *row, why string) {
	if r.gone == "" {
		r.gone, r.groups = why, nil
	}
	if r.ended.IsZero() {
		r.ended = s.now
	}
}

func (s *Screen) lose(n Lost) {
	since := s.now
	if before, ok := s.lost[n.From]; ok {
		since = before.since
	}
	s.lost[n.From] = loss{since, n.Err}
}

// kept is how many events of one object are remembered.
const kept = 50

// note takes an event in, the newest first.
func (s *Screen) note(e Event) {
	k := key{e.Namespace, e.Name}
	all := slices.DeleteFunc(s.events[k], func(o Event) bool { return o.ID == e.ID })
	if !e.Deleted {
		all = append(all, e)
	}
	slices.SortStableFunc(all, newestFirst)
	if s.events[k] = all[:min(len(all), kept)]; len(all) == 0 {
		delete(s.events, k)
	}
}

func newestFirst(a, b Event) int { return b.At.Compare(a.At) }

// visible are the workloads of the list, in the order that they keep.
func (s *Screen) visible() []key {
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(s.rows)), func(k key) bool {
		r := s.rows[k]
		return !r.live && (!s.all || r.gone != "") && s.options.Only == nil
	})
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	return keys
}

// choose keeps the selection on something that is there.
func (s *Screen) choose() {
	keys := s.visible()
	if len(keys) > 0 && !slices.Contains(keys, s.selected) {
		s.selected = keys[0]
	}
	if len(keys) == 0 && s.options.Only == nil {
		s.selected, s.open = key{}, false
	}
}
