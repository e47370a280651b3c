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

// Options are constant while the screen is shown.
type Options struct {
	// Only is the workload that is watched. Nil: all under hold.
	Only *pb.WorkloadRef
	// Namespace is the one that is watched. Empty: all, and names are shown with their namespace.
	Namespace string
	// Unicode is true on a UTF-8 terminal.
	Unicode bool
	// NoEvents says why there are no Kubernetes events. Empty: there are.
	NoEvents string
}

// Screen is the state of the screen. It must be used by one goroutine at a time.
type Screen struct {
	options Options
	glyphs  glyphs

	width, height int
	now           time.Time

	rows   map[key]*row
	events map[key][]Event
	// cellCache has the cells by their key.
	cellCache map[cellKey]string
	// synced is true once all workloads are known.
	synced bool
	// lost has the sources that are unreachable.
	lost map[Source]loss
	log  logLine

	selected key
	// all shows workloads at rest too, open shows the detail only, help shows the keys.
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
	// groups are those of the last Detail.
	groups []*pb.Group
	// live is true once a release was observed running: the row then stays when it ends.
	live bool
	// ended is when the release was first observed to have ended. Zero: it runs, or was never observed running.
	ended time.Time
	// gone says why the workload is not watched any more. Empty: it is.
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
		rows: map[key]*row{}, events: map[key][]Event{}, lost: map[Source]loss{}, cellCache: map[cellKey]string{},
	}
	if options.Unicode {
		s.glyphs = unicodeGlyphs
	}
	if options.Only != nil {
		s.selected, s.open = keyOf(options.Only), true
	}
	return s
}

// Done reports whether the user has quit.
func (s *Screen) Done() bool { return s.done }

// Selected returns the selected workload, or nil.
func (s *Screen) Selected() *pb.WorkloadRef {
	if r := s.rows[s.selected]; r != nil {
		return r.context.GetWorkload()
	}
	return s.options.Only
}

// Summary returns a line per release, to print after the screen is closed.
func (s *Screen) Summary() []string {
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

// Update applies a message.
func (s *Screen) Update(message any) {
	switch n := message.(type) {
	case Size:
		s.width, s.height = n.Width, n.Height
	case Tick:
		s.now = time.Time(n)
	case Key:
		s.press(string(n))
	case Change:
		s.change(n)
	case Detail:
		s.setDetail(n)
	case Missing:
		if r := s.rows[s.selected]; r != nil {
			s.setGone(r, view.OneLine(n.Err.Error()))
		}
		delete(s.lost, FromDriver)
	case Lost:
		s.setLost(n)
	case Found:
		delete(s.lost, n.From)
	case Event:
		s.addEvent(n)
	case NoEvents:
		s.options.NoEvents = view.OneLine(string(n))
	case Log:
		s.log = logLine{s.now, view.OneLine(string(n))}
	}
	s.keepSelection()
	s.scroll = max(min(s.scroll, s.maxScroll()), 0)
}

func (s *Screen) change(n Change) {
	delete(s.lost, FromDriver)
	switch change := n.GetChange().(type) {
	case *pb.WatchWorkloadsResponse_Context:
		s.setContext(change.Context)
	case *pb.WatchWorkloadsResponse_Removed:
		if r := s.rows[keyOf(change.Removed)]; r != nil {
			s.setGone(r, notHeld)
		}
	case *pb.WatchWorkloadsResponse_Synced:
		s.synced = true
	}
}

// setDetail sets the context and groups of the selected workload. It adds no rows: this stream also has workloads that are no
// longer under hold.
func (s *Screen) setDetail(n Detail) {
	delete(s.lost, FromDriver)
	if r := s.rows[keyOf(n.GetWorkload())]; s.options.Only == nil && (r == nil || r.gone != "") {
		return
	}
	s.setContext(n.BatchContext).groups = n.GetGroups()
	s.synced = true
}

const notHeld = "no longer under hold"

// setContext sets the context of a workload's row, which it adds if needed.
func (s *Screen) setContext(c *pb.BatchContext) *row {
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

// setGone marks a row whose workload is not watched any more.
func (s *Screen) setGone(r *row, why string) {
	if r.gone == "" {
		r.gone, r.groups = why, nil
	}
	if r.ended.IsZero() {
		r.ended = s.now
	}
}

func (s *Screen) setLost(n Lost) {
	since := s.now
	if before, ok := s.lost[n.From]; ok {
		since = before.since
	}
	s.lost[n.From] = loss{since, n.Err}
}

// maxEvents is the number of events that are kept per object.
const maxEvents = 50

// addEvent adds, updates or removes an event.
func (s *Screen) addEvent(e Event) {
	k := key{e.Namespace, e.Name}
	all := slices.DeleteFunc(s.events[k], func(o Event) bool { return o.ID == e.ID })
	if !e.Deleted {
		all = append(all, e)
	}
	slices.SortStableFunc(all, newestFirst)
	if s.events[k] = all[:min(len(all), maxEvents)]; len(all) == 0 {
		delete(s.events, k)
	}
}

func newestFirst(a, b Event) int { return b.At.Compare(a.At) }

// visible returns the workloads of the list, sorted.
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

// keepSelection selects another row if the selected one is not visible.
func (s *Screen) keepSelection() {
	keys := s.visible()
	if len(keys) > 0 && !slices.Contains(keys, s.selected) {
		s.selected = keys[0]
	}
	if len(keys) == 0 && s.options.Only == nil {
		s.selected, s.open = key{}, false
	}
}
