// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func claim(name, storage string, labels ...string) corev1.PersistentVolumeClaim {
	c := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(storage)}
	for _, l := range labels {
		metav1.SetMetaDataLabel(&c.ObjectMeta, l, l)
	}
	return c
}

func TestCompareTemplates(t *testing.T) {
	template := func(size int32, changes ...func(*record.Template)) record.Template {
		t := record.Template{LeaderWorkerTemplate: lws.LeaderWorkerTemplate{Size: ptr.To(size)}}
		for _, change := range changes {
			change(&t)
		}
		return t
	}
	subdomain := func(p lws.SubdomainPolicy) func(*record.Template) {
		return func(t *record.Template) { t.NetworkConfig = &lws.NetworkConfig{SubdomainPolicy: &p} }
	}
	restarts := func(p lws.RestartPolicyType) func(*record.Template) {
		return func(t *record.Template) { t.LeaderWorkerTemplate.RestartPolicy = p }
	}
	claims := func(all ...corev1.PersistentVolumeClaim) func(*record.Template) {
		return func(t *record.Template) { t.LeaderWorkerTemplate.VolumeClaimTemplates = all }
	}
	image := func(t *record.Template) {
		t.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers = []corev1.Container{{Image: "v2"}}
	}
	retention := func(t *record.Template) {
		t.LeaderWorkerTemplate.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: "Delete", WhenScaled: "Retain"}
	}
	for _, tt := range []struct {
		name        string
		groups, now record.Template
		want        []string // per change: words, separated by |
	}{
		{"another image", template(2), template(2, image), nil},
		{"grows", template(2), template(4), []string{FieldSize + " changes from 2 to 4|3 workers instead of 1"}},
		{"becomes 1", template(2), template(1), []string{"from 2 to 1|gets no workers"}},
		{"was 1", template(1), template(3), []string{"from 1 to 3|get 2 workers, also without a restart"}},
		{"the default subdomain is spelled out", template(2), template(2, subdomain(lws.SubdomainShared)), nil},
		{
			"subdomain", template(2), template(2, subdomain(lws.SubdomainUniquePerReplica)),
			[]string{FieldSubdomain + " changes from Shared to UniquePerReplica|can't resolve"},
		},
		{"the default restart policy is spelled out", template(2), template(2, restarts(lws.RecreateGroupOnPodRestart)), nil},
		{"the former name of None", template(2, restarts(lws.DeprecatedDefaultRestartPolicy)), template(2, restarts(lws.NoneRestartPolicy)), nil},
		{"restart policy", template(2), template(2, restarts(lws.NoneRestartPolicy)), []string{FieldRestart + "|to None|at once|no longer"}},
		{
			"back to groups", template(2, restarts(lws.NoneRestartPolicy)), template(2, restarts(lws.RecreateGroupAfterStart)),
			[]string{"to RecreateGroupAfterStart|has restarted before"},
		},
		{"same claims in other words", template(2, claims(claim("a", "1Gi"))), template(2, claims(claim("a", "1024Mi", "team"))), nil},
		{"claims", template(2, claims(claim("a", "1Gi"))), template(2, claims(claim("a", "2Gi"))), []string{FieldClaims + " changes from a 1Gi to a 2Gi|stops"}},
		{"no more claims", template(2, claims(claim("a", "1Gi"))), template(2), []string{"from a 1Gi to none"}},
		{"retention", template(2), template(2, retention), []string{FieldRetention + " changes from none to whenDeleted Delete"}},
		{"several", template(2), template(4, subdomain(lws.SubdomainUniquePerReplica)), []string{FieldSize, FieldSubdomain}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := CompareTemplates(tt.groups, tt.now)
			require.Len(t, got, len(tt.want))
			for i, words := range tt.want {
				for _, word := range strings.Split(words, "|") {
					if !strings.Contains(got[i].String(), word) {
						t.Errorf("%q does not contain %q", got[i], word)
					}
				}
			}
		})
	}
}

func TestWaitingRevision(t *testing.T) {
	for _, tt := range []struct {
		name, spec, stable, want string
		groups                   []string
		phase                    record.Phase
	}{
		{"all groups run the template", "B", "", "", []string{"B", "B"}, ""},
		{"no group", "B", "A", "", nil, ""},
		{"not recorded yet", "", "", "A", []string{"A"}, ""},
		{"one", "B", "", "A", []string{"B", "A"}, ""},
		{"the stable revision of several", "C", "B", "B", []string{"A", "B", "C"}, record.Promoting},
		{"a rollback to it, with no group left of it", "B", "A", "A", []string{"B", "B"}, record.RollingBack},
		{"a rollback to it, with groups of a third one", "C", "A", "A", []string{"B", "C"}, record.RollingBack},
		{"a rollback to the template", "A", "A", "B", []string{"B", "B"}, record.RollingBack},
	} {
		w := Workload{Revision: tt.spec}
		for i, r := range tt.groups {
			w.Groups = append(w.Groups, Group{Index: i, Revision: r})
		}
		assert.Equal(t, tt.want, WaitingRevision(w, &record.Release{StableRevision: tt.stable, Phase: tt.phase}), tt.name)
	}
}

// What can't work is refused, with the way out; the rest begins with a warning.
func TestBeginUnsafeTemplate(t *testing.T) {
	size := TemplateChange{Field: FieldSize, Old: "2", New: "4", Effect: "it grows"}
	subdomain := TemplateChange{Field: FieldSubdomain, Old: "2", New: "4", Effect: "it grows"}
	claims := TemplateChange{Field: FieldClaims, Old: "a 1Gi", New: "a 2Gi", Effect: "it stops"}
	for _, tt := range []struct {
		name   string
		change TemplateChange
		style  pb.Style
		want   string // empty: it begins
	}{
		{"canary", size, pb.Style_STYLE_CANARY, ""},
		{"blue-green", size, pb.Style_STYLE_BLUE_GREEN, ""},
		{"in place", size, pb.Style_STYLE_PARTITION, "in style canary or blue-green"},
		{"subdomain", subdomain, pb.Style_STYLE_CANARY, ""},
		{"subdomain in place", subdomain, pb.Style_STYLE_PARTITION, "in style canary or blue-green"},
		{"claims", claims, pb.Style_STYLE_CANARY, "Restore the old volumeClaimTemplates"},
		{"claims in place", claims, pb.Style_STYLE_PARTITION, "Restore the old volumeClaimTemplates"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Observation{
				Now: noon, Record: &record.Record{}, UnsafeChanges: []TemplateChange{tt.change},
				Stable: Workload{
					Name: "vllm", Replicas: 1, Size: 4, Revision: "new", Recorded: []string{"new", "old"}, Rolling: record.Hold(),
					Groups: []Group{{Revision: "old", Leader: "vllm-0"}},
				},
			}
			d, err := Decide(o, Begin{ReleaseID: "r1", Policy: &pb.ReleasePolicy{Style: tt.style, Batches: []string{"100%"}}})
			if tt.want != "" {
				assert.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_UNSUPPORTED && strings.Contains(err.Error(), tt.want), err)
				return
			}
			last := len(d.Warnings) - 1 // blue-green without traffic has another one
			assert.True(t, err == nil && d.Action != nil && last >= 0 && d.Warnings[last].GetCode() == CodeUnsafeTemplate && strings.Contains(d.Warnings[last].GetMessage(), "from 2 to 4: it grows"),
				"%v, %v", d, err)
		})
	}
}
