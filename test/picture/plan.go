// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package picture draws releases as SVG: groups as rows over time, the revision as colour, and below them the capacity and
// the share of requests. It does no I/O.
//
//	svg := picture.Plan("vllm: Canary release", response) // of a PlanResponse with frames
package picture

import (
	"fmt"
	"html"
	"slices"
	"strings"
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Dimensions in pixels.
const (
	width       = 960
	left, right = 104, 52
	plot        = width - left - right
	top         = 124 // of the first row
	rowHeight   = 16
	rowStep     = 20
	setGap      = 12 // between the workload's own groups and the canary's
	chartGap    = 40
	chartHeight = 130
	bottom      = 48
	// letter is the approximate width of a character.
	letter = 6.3
)

// style has colours that can be distinguished with colour blindness, for light and dark. It has no CSS variables, which some
// viewers don't support.
const style = `<style>
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 11.5px; fill: #1f2933 }
.h { font-size: 16px; font-weight: 600 } .s { fill: #6b7785 } .m { text-anchor: middle } .e { text-anchor: end }
.bg { fill: #ffffff } .band { fill: #f3f6f9 } .old { fill: #8fa3bf } .starting { fill: #f2c14e } .new { fill: #1b998b }
.grid { stroke: #dfe5ec; stroke-width: 1 } .edge { stroke: #aab4c0; stroke-width: 1; stroke-dasharray: 2 3 }
.cap, .req, .all { fill: none; stroke-width: 2.25; stroke-linejoin: round } .all { stroke: #aab4c0 } .cap { stroke: #3d5a80 } .req { stroke: #d1495b; stroke-dasharray: 6 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaef } .s { fill: #97a3b1 } .bg { fill: #14181d } .band { fill: #1c232b } .old { fill: #5f7593 } .starting { fill: #d9a62e }
  .new { fill: #2bb8a7 } .grid { stroke: #2b333d } .edge { stroke: #4a5663 } .cap { stroke: #8fb4e0 } .all { stroke: #4a5663 } .req { stroke: #ef7a87 }
}
</style>
`

// canvas builds a picture.
type canvas struct {
	strings.Builder

	r *pb.PlanResponse
	// about follows the groups in the line below the title.
	about string

	rows  []row
	total time.Duration // of the time axis
	end   time.Duration // of the release
}

// row is one group over time.
type row struct {
	role  pb.GroupRole
	index int32
	y     float64
}

// Plan draws a plan with frames.
func Plan(title string, r *pb.PlanResponse) []byte {
	about := " · time in units of a group's start-up, which is unknown"
	if r.GetEstimate() != nil {
		about = fmt.Sprintf(" · %s in all · %s to start a group", short(r.GetEstimate().AsDuration()), short(r.GetStartup().AsDuration()))
	}
	return (&canvas{r: r, about: about}).draw(title)
}

func (c *canvas) draw(title string) []byte {
	r := c.r
	if n := len(r.GetFrames()); n > 0 {
		c.end = r.GetFrames()[n-1].GetAt().AsDuration()
	}
	// Time after the end is shown, too, since the end itself has no width.
	c.total = max(c.end+c.end/20, time.Second)
	height := c.layout()
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(c, "<title>%s</title>\n%s", html.EscapeString(title), style)
	fmt.Fprintf(c, `<rect class="bg" width="%d" height="%.0f"/>`+"\n", width, height)
	c.header(title)
	chart := height - bottom - chartHeight
	c.bands(chart + chartHeight)
	for _, row := range c.rows {
		c.group(row)
	}
	c.chart(chart)
	c.axis(chart + chartHeight)
	fmt.Fprintln(c, "</svg>")
	return []byte(c.String())
}

// layout places the rows and returns the picture's height.
func (c *canvas) layout() float64 {
	for _, f := range c.r.GetFrames() {
		for _, g := range f.GetGroups() {
			known := func(r row) bool { return r.role == g.GetRole() && r.index == g.GetIndex() }
			if !slices.ContainsFunc(c.rows, known) {
				c.rows = append(c.rows, row{role: g.GetRole(), index: g.GetIndex()})
			}
		}
	}
	slices.SortFunc(c.rows, func(a, b row) int {
		if a.role != b.role {
			return int(a.role - b.role)
		}
		return int(a.index - b.index)
	})
	y := float64(top)
	for i := range c.rows {
		if i > 0 && c.rows[i].role != c.rows[i-1].role {
			y += setGap
		}
		c.rows[i].y = y
		y += rowStep
	}
	return y + chartGap + chartHeight + bottom
}

func (c *canvas) x(at time.Duration) float64 {
	return left + plot*float64(min(at, c.total))/float64(c.total)
}

func (c *canvas) header(title string) {
	fmt.Fprintf(c, `<text class="h" x="16" y="28">%s</text>`+"\n", html.EscapeString(title))
	about := fmt.Sprintf("%s of %s%s", count(c.r.GetReplicas(), "group"), count(c.r.GetSize(), "pod"), c.about)
	if roles := c.roles(); len(roles) > 0 {
		names := make([]string, len(roles))
		for i, role := range roles {
			names[i] = fmt.Sprintf("%s %d", role.GetName(), role.GetReplicas())
		}
		about = fmt.Sprintf("%s (%s)%s", count(c.r.GetReplicas(), "unit"), strings.Join(names, ", "), c.about)
	}
	fmt.Fprintf(c, `<text class="s" x="16" y="47">%s</text>`+"\n", html.EscapeString(about))
	x := float64(14)
	for _, key := range []struct{ class, text string }{
		{"old", "old, ready"}, {"starting", "starting"}, {"new", "new, ready"}, {"all", "existing"}, {"cap", "available"}, {"req", "requests to new"},
	} {
		if key.class == "req" || key.class == "cap" || key.class == "all" {
			fmt.Fprintf(c, `<path class="%s" d="M%.1f 64h18"/>`, key.class, x)
		} else {
			fmt.Fprintf(c, `<rect class="%s" x="%.1f" y="58" width="14" height="11" rx="2"/>`, key.class, x+2)
		}
		fmt.Fprintf(c, `<text x="%.1f" y="68">%s</text>`+"\n", x+22, key.text)
		x += letter*float64(len(key.text)) + 44
	}
}

// roles returns the roles of a DisaggregatedSet, whose groups are units.
func (c *canvas) roles() []*pb.Role {
	if len(c.r.GetSteps()) == 0 {
		return nil
	}
	return c.r.GetSteps()[0].GetRoles()
}

func count(n int32, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// bands draws the steps.
func (c *canvas) bands(floor float64) {
	for i, s := range c.r.GetSteps() {
		from, to := c.span(int32(i))
		a, b := c.x(from), c.x(to)
		if to == c.end && i == len(c.r.GetSteps())-1 {
			b = c.x(c.total)
		}
		if i%2 == 0 {
			fmt.Fprintf(c, `<rect class="band" x="%.1f" y="%d" width="%.1f" height="%.1f"/>`+"\n", a, top-28, b-a, floor-top+28)
		}
		if i > 0 {
			fmt.Fprintf(c, `<path class="edge" d="M%.1f %dV%.1f"/>`+"\n", a, top-28, floor)
		}
		label := s.GetName()
		for _, shorter := range []string{strings.SplitN(label, " (", 2)[0], strings.TrimPrefix(strings.SplitN(label, " of ", 2)[0], "batch "), ""} {
			if letter*float64(len(label)) < b-a-4 {
				break
			}
			label = shorter
		}
		fmt.Fprintf(c, `<text class="m s" x="%.1f" y="%d">%s<title>%s</title></text>`+"\n", (a+b)/2, top-14, html.EscapeString(label), html.EscapeString(s.GetName()))
	}
}

// span returns when a step begins and ends.
func (c *canvas) span(step int32) (from, to time.Duration) {
	from, to = c.end, c.end
	for _, f := range slices.Backward(c.r.GetFrames()) {
		switch at := f.GetAt().AsDuration(); {
		case f.GetStep() == step:
			from = at
		case f.GetStep() > step:
			to = at
		}
	}
	return min(from, to), to
}

// group draws one row: a bar for each period in one state.
func (c *canvas) group(r row) {
	name := "group"
	if len(c.roles()) > 0 {
		name = "unit"
	}
	if r.role == pb.GroupRole_GROUP_ROLE_CANARY {
		name = "added"
	}
	fmt.Fprintf(c, `<text class="e s" x="%d" y="%.1f">%s %d</text>`+"\n", left-10, r.y+12, name, r.index)
	was, since := "", time.Duration(0)
	for _, f := range c.r.GetFrames() {
		at, now := f.GetAt().AsDuration(), stateIn(f, r)
		if now != was {
			c.bar(r, was, since, at)
			was, since = now, at
		}
	}
	c.bar(r, was, since, c.total)
}

// stateIn returns the class of a group in a frame, or "" if it does not exist.
func stateIn(f *pb.PlanFrame, r row) string {
	for _, g := range f.GetGroups() {
		switch {
		case g.GetRole() != r.role || g.GetIndex() != r.index:
		case !g.GetReady():
			return "starting"
		case g.GetUpdated():
			return "new"
		default:
			return "old"
		}
	}
	return ""
}

func (c *canvas) bar(r row, class string, from, to time.Duration) {
	a, b := c.x(from), c.x(to)
	if class == "" || b-a < 0.5 {
		return
	}
	fmt.Fprintf(c, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%d" rx="3"><title>%s, %s to %s</title></rect>`+"\n",
		class, a+0.75, r.y, max(b-a-1.5, 0.5), rowHeight, class, c.label(from), c.label(min(to, c.end)))
}

// chart draws the groups that exist and those that are available, both in percent of replicas, and the share of requests.
func (c *canvas) chart(y float64) {
	most := 100.0
	for _, f := range c.r.GetFrames() {
		most = max(most, c.existing(f))
	}
	scale := func(percent float64) float64 { return y + chartHeight*(1-percent/(most*1.06)) }
	step := 25.0
	if most > 100 {
		step = 50
	}
	for p := 0.0; p <= most; p += step {
		fmt.Fprintf(c, `<path class="grid" d="M%d %.1fH%d"/><text class="e s" x="%d" y="%.1f">%.0f%%</text>`+"\n", left, scale(p), width-right, left-10, scale(p)+4, p)
	}
	c.line("all", scale, c.existing)
	c.line("cap", scale, c.capacity)
	c.line("req", scale, func(f *pb.PlanFrame) float64 { return float64(f.GetTrafficWeight()) })
}

// existing returns the groups that exist as a percentage of replicas. Its peak is the CAPACITY of the table of lockstep plan.
func (c *canvas) existing(f *pb.PlanFrame) float64 {
	return 100 * float64(len(f.GetGroups())) / float64(max(c.r.GetReplicas(), 1))
}

// capacity returns available groups as a percentage of replicas.
func (c *canvas) capacity(f *pb.PlanFrame) float64 {
	return 100 * float64(f.GetAvailable()) / float64(max(c.r.GetReplicas(), 1))
}

// line draws a step function. Of several values at the same time it draws the last.
func (c *canvas) line(class string, scale func(float64) float64, value func(*pb.PlanFrame) float64) {
	var path strings.Builder
	frames := c.r.GetFrames()
	for i, f := range frames {
		if i+1 < len(frames) && frames[i+1].GetAt().AsDuration() == f.GetAt().AsDuration() && i > 0 {
			continue
		}
		if y := scale(value(f)); path.Len() == 0 {
			fmt.Fprintf(&path, "M%d %.1f", left, y)
		} else {
			fmt.Fprintf(&path, "H%.1fV%.1f", c.x(f.GetAt().AsDuration()), y)
		}
	}
	if path.Len() > 0 {
		fmt.Fprintf(c, `<path class="%s" d="%sH%.1f"/>`+"\n", class, path.String(), c.x(c.total))
	}
}

// axis draws the time axis.
func (c *canvas) axis(y float64) {
	step := tick(c.total)
	for at := time.Duration(0); at <= c.total; at += step {
		fmt.Fprintf(c, `<path class="grid" d="M%.1f %.1fv5"/><text class="m s" x="%.1f" y="%.1f">%s</text>`+"\n", c.x(at), y, c.x(at), y+19, c.label(at))
	}
}

// tick returns a round duration of which about eight fit the axis.
func tick(total time.Duration) time.Duration {
	for _, round := range []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute,
		10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour,
	} {
		if total/round <= 9 {
			return round
		}
	}
	return max((total / 8).Round(time.Hour), time.Hour)
}

// label returns a time, or a number of start-ups if the start-up time is unknown.
func (c *canvas) label(at time.Duration) string {
	if c.r.GetEstimate() == nil {
		return fmt.Sprintf("%g×", at.Minutes())
	}
	return short(at)
}

// short returns a duration without zero units: "1h30m", "45s".
func short(d time.Duration) string {
	s := d.Round(time.Second).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
