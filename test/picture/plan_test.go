// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func planned(t *testing.T, style pb.Style, startup time.Duration, batches ...string) *pb.PlanResponse {
	t.Helper()
	return plannedRoles(t, nil, style, startup, batches...)
}

// plannedRoles is planned for a DisaggregatedSet with these roles.
func plannedRoles(t *testing.T, roles []plan.Role, style pb.Style, startup time.Duration, batches ...string) *pb.PlanResponse {
	t.Helper()
	p := &pb.ReleasePolicy{Style: style, Batches: batches}
	if style != pb.Style_STYLE_PARTITION {
		p.Traffic = &pb.TrafficPolicy{StableService: "vllm-leader", HttpRoutes: []string{"vllm"}}
	}
	policy, bad := record.ParsePolicy(p)
	require.Empty(t, bad)
	pair := lws.LeaderWorkerTemplate{Size: ptr.To[int32](2)}
	in := simulate.Input{
		Replicas: 4, Rolling: lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1)}, Policy: policy, Startup: startup, Frames: true,
		Old: pair, New: pair,
	}
	for _, role := range roles {
		in.Roles = append(in.Roles, simulate.Role{Role: role, Old: pair, New: pair})
	}
	r, err := simulate.Release(in)
	require.NoError(t, err)
	return r
}

// shape is an XML element.
type shape struct {
	name  string
	attrs map[string]string
}

// parse returns the elements of a picture.
func parse(t *testing.T, svg []byte) []shape {
	t.Helper()
	var all []shape
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, "the picture is not XML: %v\n%s", err, svg)
		if e, ok := token.(xml.StartElement); ok {
			s := shape{name: e.Name.Local, attrs: map[string]string{}}
			for _, a := range e.Attr {
				s.attrs[a.Name.Local] = a.Value
			}
			all = append(all, s)
		}
	}
}

// bars returns the widths of all bars of a class.
func bars(t *testing.T, all []shape, class string) (widths []float64) {
	t.Helper()
	for _, s := range all {
		if s.name != "rect" || s.attrs["class"] != class || s.attrs["height"] != strconv.Itoa(rowHeight) {
			continue
		}
		x, errX := strconv.ParseFloat(s.attrs["x"], 64)
		w, errW := strconv.ParseFloat(s.attrs["width"], 64)
		assert.False(t, errX != nil || errW != nil || w <= 0 || x < left || x+w > width-right+1,
			"a bar from %q, %q wide", s.attrs["x"], s.attrs["width"])
		widths = append(widths, w)
	}
	return widths
}

func TestPlanPicture(t *testing.T) {
	all := parse(t, Plan(`a <"&> title`, planned(t, pb.Style_STYLE_CANARY, 10*time.Minute, "25%", "100%")))
	// Each of 4 groups is old, starts and is new; each of 4 canary groups starts and is new.
	o, s, n := bars(t, all, "old"), bars(t, all, "starting"), bars(t, all, "new")
	assert.True(t, len(o) == 4 && len(s) == 8 && len(n) == 8, "%d bars old, %d starting, %d new", len(o), len(s), len(n))
	starting := bars(t, all, "starting")
	for _, w := range starting {
		assert.False(t, w < starting[0]-0.11 || w > starting[0]+0.11, "start-ups take the same time, but have bars of %v", starting)
	}
	lines := 0
	for _, s := range all {
		if c := s.attrs["class"]; s.name == "path" && (c == "cap" || c == "req") {
			lines++
		}
	}
	if lines != 4 { // two in the legend
		t.Errorf("%d lines", lines)
	}
}

// The time axis counts start-ups if the start-up time is unknown.
func TestPlanPictures(t *testing.T) {
	for _, style := range []pb.Style{pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION} {
		for _, startup := range []time.Duration{0, time.Second, 100 * time.Hour} {
			svg := Plan("x", planned(t, style, startup, "0%", "100%"))
			parse(t, svg)
			assert.Equal(t, startup == 0, strings.Contains(string(svg), "1×<"), "%v, start-up %s: counts in start-ups", style, startup)
		}
	}
	parse(t, Plan("empty", &pb.PlanResponse{}))
}

var update = flag.Bool("update", false, "write the pictures of the documentation")

// The pictures in the documentation are of the planner's forecasts. make images writes them.
func TestPlanPicturesAreDocumented(t *testing.T) {
	roles := []plan.Role{{Name: "prefill", Replicas: 4, MaxUnavailable: 1, MaxSurge: 1}, {Name: "decode", Replicas: 2, MaxSurge: 1}}
	for name, c := range map[string]struct {
		title   string
		roles   []plan.Role
		style   pb.Style
		batches []string
	}{
		"canary":                   {"vllm: Canary release", nil, pb.Style_STYLE_CANARY, []string{"1"}},
		"blue-green":               {"vllm: BlueGreen release", nil, pb.Style_STYLE_BLUE_GREEN, []string{"100%"}},
		"partition":                {"vllm: Partition release", nil, pb.Style_STYLE_PARTITION, []string{"25%", "50%", "100%"}},
		"disaggregated-canary":     {"llm: Canary release", roles, pb.Style_STYLE_CANARY, []string{"25%", "50%"}},
		"disaggregated-blue-green": {"llm: BlueGreen release", roles, pb.Style_STYLE_BLUE_GREEN, []string{"100%"}},
		"disaggregated-partition":  {"llm: Partition release", roles, pb.Style_STYLE_PARTITION, []string{"25%", "50%", "100%"}},
	} {
		path := "../../docs/images/plan-" + name + ".svg"
		response := plannedRoles(t, c.roles, c.style, 10*time.Minute, c.batches...)
		want := Plan(c.title, response)
		if *update {
			require.NoError(t, os.WriteFile(path, want, 0o600))
		}
		drawn, most, least := &canvas{r: response}, 0.0, 100.0
		for _, f := range response.GetFrames() {
			most, least = max(most, drawn.existing(f)), min(least, drawn.capacity(f))
		}
		table, low := 0.0, 100.0
		for _, s := range response.GetSteps() {
			table, low = max(table, 100*s.GetMaxCapacity()), min(low, 100*s.GetMinCapacity())
		}
		assert.True(t, most == table && least == low,
			"%s: the picture has %.0f..%.0f%%, the table of lockstep plan %.0f..%.0f%%", path, least, most, low, table)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(got, want), "%s is out of date: run make images", path)
	}
}
