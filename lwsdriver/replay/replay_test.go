// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var update = flag.Bool("update", false, "write the decisions of this version into the recordings under testdata")

// TestRecordings checks that real releases, recorded by the end-to-end suites (see test/driver), are decided as they
// were.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl*")
	require.True(t, err == nil && len(files) != 0, "no recordings: %v", err)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			raw := unpacked(t, file)
			var again bytes.Buffer
			err := Read(bytes.NewReader(raw), func(line int, e Entry) error {
				diff, err := e.Replay()
				assert.True(t, *update || diff == "", "decision %d:\n%s", line, diff)
				d, refusal := plan.Decide(e.Observation, e.Intent)
				r := Recorder{To: &again}
				r.Record(e.Observation, e.Intent, d, refusal)
				return errors.Join(err, r.err)
			})
			require.NoError(t, err)
			if *update {
				pack(t, file, again.Bytes())
			}
		})
	}
}

func unpacked(t *testing.T, file string) []byte {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err == nil && strings.HasSuffix(file, ".gz") {
		var zipped *gzip.Reader
		if zipped, err = gzip.NewReader(bytes.NewReader(raw)); err == nil {
			raw, err = io.ReadAll(zipped)
		}
	}
	require.NoError(t, err)
	return raw
}

func pack(t *testing.T, file string, raw []byte) {
	t.Helper()
	var out bytes.Buffer
	if !strings.HasSuffix(file, ".gz") {
		out.Write(raw)
	} else {
		zipped := gzip.NewWriter(&out)
		_, err := zipped.Write(raw)
		err = errors.Join(err, zipped.Close())
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(file, out.Bytes(), 0o600))
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// resting returns a workload under hold whose template waits for a release.
func resting() plan.Observation {
	o := plan.Observation{
		Now:    noon,
		Stable: plan.Workload{Name: "vllm", Replicas: 2, Size: 2, Revision: "b", Rolling: record.Hold(), Observed: true},
		Record: &record.Record{Saved: record.Native(record.Hold())},
	}
	o.Key.Namespace, o.Key.Name = "default", "vllm"
	for i := range 2 {
		o.Stable.Groups = append(o.Stable.Groups, plan.Group{Index: i, Leader: "vllm-" + string(rune('0'+i)), Revision: "a", Ready: true})
	}
	return o
}

// write records decisions about an observation, one for each intent.
func write(t *testing.T, r *Recorder, o plan.Observation, intents ...plan.Intent) {
	t.Helper()
	for _, i := range intents {
		d, err := plan.Decide(o, i)
		r.Record(o, i, d, err)
	}
}

func TestReplayReturnsDifferences(t *testing.T) {
	var recording bytes.Buffer
	r := &Recorder{To: &recording}
	write(t, r, resting(), nil, plan.SetTarget{ReleaseID: "r1", Batch: ptr.To(0)})
	require.NoError(t, r.err)
	edited := strings.Replace(recording.String(), `"reason":"NewRevisionWaits"`, `"reason":"Held"`, 1)
	edited = strings.Replace(edited, `"refusal":`, `"was":`, 1)
	var got []string
	err := Read(strings.NewReader(edited), func(_ int, e Entry) error {
		diff, err := e.Replay()
		for line := range strings.Lines(diff) {
			if line[0] != ' ' {
				got = append(got, strings.TrimSpace(line))
			}
		}
		return err
	})
	require.NoError(t, err)
	want := []string{
		"--- recorded", "+++ now", "@@ -6,3 +6,3 @@", `-    "reason": "Held",`, `+    "reason": "NewRevisionWaits",`,
		"--- recorded", "+++ now", "@@ -4,3 +4,3 @@", `-  "refused": false`, `+  "refused": true`,
	}
	assert.Empty(t, cmp.Diff(want, got), "differences (-want +got)")
}

func TestReadRefusesOtherVersions(t *testing.T) {
	err := Read(strings.NewReader(`{"version":99}`), func(int, Entry) error { return nil })
	assert.True(t, err != nil && strings.Contains(err.Error(), "version 99") && strings.Contains(err.Error(), "line 1"), "error is %v", err)
}

// TestIntentsRoundTrip checks that every intent of the planner is read back as it was written.
// A driver is killed while it writes an entry, and its successor continues the file.
func TestIncompleteEntryIsSkipped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "recording.jsonl")
	record := func(name string) {
		file, err := Open(path)
		require.NoError(t, err)
		defer func() { _ = file.Close() }()
		o := plan.Observation{Key: types.NamespacedName{Name: name}, Gone: true}
		d, refusal := plan.Decide(o, nil)
		r := Recorder{To: file}
		r.Record(o, nil, d, refusal)
		require.NoError(t, r.err)
	}
	record("first")
	info, err := os.Stat(path)
	require.NoError(t, err)
	record("killed")
	require.NoError(t, os.Truncate(path, info.Size()+40))
	record("second")
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var names []string
	err = Read(bytes.NewReader(raw), func(_ int, e Entry) error {
		names = append(names, e.Observation.Key.Name)
		return nil
	})
	diff := cmp.Diff([]string{"first", "second"}, names)
	assert.True(t, err == nil && diff == "", "%v; -want +got:\n%s", err, diff)
}

func TestIntentsRoundTrip(t *testing.T) {
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}}
	all := map[string]plan.Intent{
		"Adopt": plan.Adopt{}, "Disown": plan.Disown{Revision: "b"}, "Begin": plan.Begin{ReleaseID: "r1", Owner: "jo", Policy: policy, Revision: "b"},
		"SetTarget": plan.SetTarget{ReleaseID: "r1", Batch: ptr.To(0)}, "Promote": plan.Promote{ReleaseID: "r1", Revision: "b"},
		"RollBack": plan.RollBack{ReleaseID: "r1"}, "Route": plan.Route{ReleaseID: "r1", Weight: ptr.To(0)}, "Undo": plan.Undo{Revision: "a"},
	}
	for name, i := range all {
		raw, err := json.Marshal(Entry{Observation: resting(), Intent: i})
		require.NoError(t, err)
		var back Entry
		require.NoError(t, json.Unmarshal(raw, &back), name)
		assert.Empty(t, cmp.Diff(i, back.Intent, protocmp.Transform()), "%s (-wrote +read)", name)
	}
	files, err := filepath.Glob("../plan/*.go")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`func \((?:\w+ )?(\w+)\) decide\(o Observation\)`).FindAllSubmatch(raw, -1) {
			found++
			assert.True(t, all[string(m[1])] != nil, "intent %s of the planner is not recorded", m[1])
		}
	}
	assert.Equal(t, len(all), found, "the planner has %d intents, this test %d", found, len(all))
}

// TestRecordingsAreRedacted checks that secrets of templates and foreign annotations are recorded only on request.
func TestRecordingsAreRedacted(t *testing.T) {
	o := resting()
	template := record.Template{}
	template.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "TOKEN", Value: "secret-1"}}}}
	o.Record.Release = &record.Release{
		ID: "r1", Phase: record.RollingBack, StableRevision: "a", UpdateRevision: "b", Policy: []byte(`{}`), StableTemplate: &template,
	}
	o.Policy.Style = pb.Style_STYLE_CANARY
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm", Annotations: map[string]string{
		"example.com/key": "secret-2", "lockstep.dev/isolation": "{}",
	}}}
	w := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: "vllm", Namespace: "default"}}
	o.Traffic = &traffic.Observed{
		Setup: traffic.NewSetup(w, "vllm-b", traffic.Policy{StableService: "vllm", CanaryService: "vllm-canary"}, nil),
		World: traffic.World{Stable: service},
	}
	var recording bytes.Buffer
	r := &Recorder{To: &recording}
	write(t, r, o, nil)
	require.NoError(t, r.err)
	for _, secret := range []string{"secret-1", "secret-2"} {
		assert.NotContains(t, recording.String(), secret)
	}
	assert.Contains(t, recording.String(), "lockstep.dev/isolation", "Lockstep's own annotations are missing")
	o.Traffic = nil // the next write is that of the record with the template
	recording.Reset()
	r = &Recorder{To: &recording}
	write(t, r, o, nil)
	assert.NoError(t, Read(&recording, func(_ int, e Entry) error {
		diff, err := e.Replay()
		assert.Empty(t, diff, "replayed")
		return err
	}))
	assert.True(t, service.Annotations["example.com/key"] == "secret-2" && len(template.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers) == 1,
		"the cached objects were changed")
}

// TestRecorderIsBounded checks that an unchanged state is recorded once, and the limit is kept.
func TestRecorderIsBounded(t *testing.T) {
	var recording bytes.Buffer
	r := &Recorder{To: &recording}
	for i := range 5 {
		o := resting()
		o.Now = noon.Add(time.Duration(i) * time.Second)
		write(t, r, o, nil)
	}
	assert.Equal(t, 1, strings.Count(recording.String(), "\n"), "lines of one state")
	size := int64(recording.Len())
	recording.Reset()
	r = &Recorder{To: &recording, Limit: size}
	write(t, r, resting(), nil, plan.Adopt{}, plan.Disown{})
	assert.ErrorIs(t, r.err, ErrLimit, "error")
	got := int64(recording.Len())
	assert.LessOrEqual(t, got, size, "%d bytes, at most %d may be written", got, size)
}
