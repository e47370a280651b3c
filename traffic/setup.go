// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// leaderIndex is the worker-index of every leader pod.
const leaderIndex = "0"

// leaders is the label that selects leaders and no workers.
var leaders = map[string]string{lws.WorkerIndexLabelKey: leaderIndex}

// Setup describes the workloads and objects of a release's traffic. It does not change during a release.
type Setup struct {
	Namespace string
	// Stable and Canary are the names of the two workloads. In place they are one.
	Stable, Canary string
	Policy         Policy
	// Shared are the objects that releases in progress of other workloads write too.
	Shared []Key
	// Owner is the owner of generated objects: the stable workload.
	Owner metav1.OwnerReference

	// StablePin and CanaryPin are the labels that distinguish stable leaders and canary leaders.
	StablePin, CanaryPin map[string]string

	// Adopts: the canary will become the workload.
	Adopts bool

	// Leader and Worker are the labels of every leader and worker of the stable workload. Worker is nil without workers, Leader
	// if the workload is deleted.
	Leader, Worker map[string]string
	// Others are the other roles of a DisaggregatedSet.
	Others []Role `json:",omitempty"`
	// CanaryLeader are the labels that canary leaders have in addition to the stable ones, besides the pin.
	CanaryLeader map[string]string
	// Updated are, in place, the observed leaders that are not at the stable revision: their names don't distinguish them.
	Updated []string
}

// Role is a role of a DisaggregatedSet with the labels of every leader and worker, as those of a Setup.
type Role struct {
	Name           string
	Leader, Worker map[string]string
}

// InPlace reports whether the release is in place: stable and canary are the revisions of one workload.
func (s Setup) InPlace() bool { return s.Canary == s.Stable }

// pin returns the labels that isolate the stable Service or pool.
func (s Setup) pin(kind string, d Desired) map[string]string {
	if !d.HandedOver {
		return pinOf(kind, s.StablePin)
	}
	pin := map[string]string{}
	for label := range s.StablePin {
		pin[label] = s.CanaryPin[label]
	}
	return pinOf(kind, pin)
}

// pinOf returns a pin of objects of a kind. A pool keeps the roles that its user has selected: its endpoint picker chooses among them, and by
// the pin among those of one revision.
func pinOf(kind string, pin map[string]string) map[string]string {
	if kind == KindInferencePool {
		pin = maps.Clone(pin)
		delete(pin, disaggregated.RoleLabelKey)
	}
	return pin
}

// namesWorkload reports whether a selector's label names one of the two workloads.
func (s Setup) namesWorkload(key, value string) bool {
	return slices.Contains(nameLabels, key) && s.StablePin[key] != "" && (value == s.Stable || value == s.Canary)
}

// NewSetup returns the Setup of a release whose canary is a second workload. leaderLabels are the labels that the policy adds
// to its leader template.
func NewSetup(stable *lws.LeaderWorkerSet, canary string, p Policy, leaderLabels map[string]string) Setup {
	s := Setup{
		Namespace: stable.Namespace, Stable: stable.Name, Canary: canary, Policy: p,
		Owner:        *metav1.NewControllerRef(stable, lws.GroupVersion.WithKind("LeaderWorkerSet")),
		StablePin:    map[string]string{lws.SetNameLabelKey: stable.Name},
		CanaryPin:    map[string]string{lws.SetNameLabelKey: canary},
		CanaryLeader: leaderLabels,
	}
	s.Leader, s.Worker = podLabels(stable.Spec.LeaderWorkerTemplate, s.StablePin)
	return s
}

// NewSetupInPlace returns the Setup of a release that updates groups of the stable workload itself: its leaders differ in
// their revision. updated are the leaders that are not at the stable revision.
func NewSetupInPlace(w *lws.LeaderWorkerSet, stable, update string, p Policy, updated []string) Setup {
	s := NewSetup(w, w.Name, p, nil)
	s.StablePin[lws.RevisionKey], s.CanaryPin[lws.RevisionKey] = stable, update
	s.Updated = updated
	return s
}

// NewSetupOfRole returns the Setup of a release of a DisaggregatedSet, given as a workload with its name and the template of the role whose
// leaders get the requests. Their revisions distinguish them. Roles are all that the set has.
func NewSetupOfRole(set *lws.LeaderWorkerSet, role, stable, update string, p Policy, roles ...disaggregated.DisaggregatedRoleSpec) Setup {
	pin := func(role, revision string) map[string]string {
		return map[string]string{
			disaggregated.SetNameLabelKey: set.Name, disaggregated.RoleLabelKey: role, disaggregated.RevisionLabelKey: revision,
		}
	}
	s := Setup{
		Namespace: set.Namespace, Stable: set.Name, Canary: set.Name + "-" + update, Policy: p,
		Owner:     *metav1.NewControllerRef(set, disaggregated.GroupVersion.WithKind("DisaggregatedSet")),
		StablePin: pin(role, stable), CanaryPin: pin(role, update),
	}
	// The name of the child is not among the labels, nor is app, which LWS replaces, and not by the same in each version: a Service must not
	// select by them.
	labelsOf := func(t lws.LeaderWorkerTemplate, role string) (leader, worker map[string]string) {
		leader, worker = podLabels(t, pin(role, stable))
		delete(leader, "app")
		delete(worker, "app")
		return leader, worker
	}
	s.Leader, s.Worker = labelsOf(set.Spec.LeaderWorkerTemplate, role)
	for _, other := range roles {
		if other.Name != role {
			leader, worker := labelsOf(other.Spec.LeaderWorkerTemplate, other.Name)
			s.Others = append(s.Others, Role{other.Name, leader, worker})
		}
	}
	return s
}

// podLabels returns the labels of a template's leaders and workers, together with those that LWS adds to every pod of the workload. Those of
// workers are nil without workers.
func podLabels(t lws.LeaderWorkerTemplate, added map[string]string) (leader, worker map[string]string) {
	leader = labels.Merge(cmp.Or(t.LeaderTemplate, &t.WorkerTemplate).Labels, added)
	leader[lws.WorkerIndexLabelKey] = leaderIndex
	if ptr.Deref(t.Size, 1) > 1 {
		worker = labels.Merge(t.WorkerTemplate.Labels, added)
	}
	return leader, worker
}

// Objects returns all objects that the release's traffic depends on. A change of one of them may change the [View].
func (s Setup) Objects() []Key {
	p := s.Policy
	keys := append([]Key{{KindService, p.StableService}, {KindService, p.CanaryService}}, p.Routes...)
	for _, name := range p.Ingresses {
		keys = append(keys, Key{KindIngress, name}, Key{KindIngress, canaryName(name)})
	}
	if p.Pool != nil {
		keys = append(keys, Key{KindInferencePool, p.Pool.Stable}, Key{KindInferencePool, p.Pool.Canary}, Key{KindService, p.Pool.Picker})
	}
	return keys
}

// backend returns the pair of backendRef targets between which routes are split: the pools if the policy names one, else the
// Services.
func (s Setup) backend() backend {
	if pool := s.Policy.Pool; pool != nil {
		return backend{
			group: InferenceGroup, kind: KindInferencePool, namespace: s.Namespace,
			stable: pool.Stable, canary: pool.Canary,
		}
	}
	return backend{
		kind: KindService, namespace: s.Namespace,
		stable: s.Policy.StableService, canary: s.Policy.CanaryService,
	}
}

// What a release writes on the objects that carry traffic.
const (
	// FieldManager owns the fields that are written.
	FieldManager = "lockstep"

	// IsolationAnnotation on the stable Service and pool lists, as JSON, the labels that the isolation added to the selector.
	IsolationAnnotation = "lockstep.dev/isolation"

	// CanariesAnnotation on a route lists the canaries with a share or mirror of it: "Service/sglang-canary,Service/vllm-canary". The
	// weights of a rule with a backendRef to one of them are multiplied.
	CanariesAnnotation = "lockstep.dev/canaries"

	// RoleLabel and StableLabel mark generated objects, as they mark the canary workload.
	RoleLabel = "lockstep.dev/role"
	// RoleCanary is the role of the canary Service, pool and Ingress.
	RoleCanary = "canary"
	// StableLabel names the stable workload.
	StableLabel = "lockstep.dev/stable"

	// rulePrefix is the prefix of the names of rules that releases add to routes.
	rulePrefix = "lockstep."
)

// GatewayGroup and GatewayVersion are the API version with which routes are read and written.
const (
	GatewayGroup   = "gateway.networking.k8s.io"
	GatewayVersion = "v1"
)

// InferenceGroup and InferenceVersion are the API version with which pools are read and written.
const (
	InferenceGroup   = "inference.networking.k8s.io"
	InferenceVersion = "v1"
)

// Kinds of objects that carry traffic.
const (
	KindService       = "Service"
	KindHTTPRoute     = "HTTPRoute"
	KindGRPCRoute     = "GRPCRoute"
	KindIngress       = "Ingress"
	KindInferencePool = "InferencePool"
)

// Key names an object in the namespace of the release.
type Key struct{ Kind, Name string }

func (k Key) String() string { return k.Kind + " " + k.Name }

// MarshalText returns the serialized form: "HTTPRoute/llm".
func (k Key) MarshalText() ([]byte, error) { return []byte(k.Kind + "/" + k.Name), nil }

// UnmarshalText parses the form of MarshalText.
func (k *Key) UnmarshalText(text []byte) error {
	kind, name, ok := strings.Cut(string(text), "/")
	if !ok {
		return fmt.Errorf("%q is not KIND/NAME", text)
	}
	k.Kind, k.Name = kind, name
	return nil
}

// canarySuffix is the suffix of the names of generated objects.
const canarySuffix = "-canary"

// canaryName returns the name of an object's generated counterpart: "llm-canary". A name that would be too long is cut and
// gets a hash, so that it stays unique.
func canaryName(name string) string {
	if len(name)+len(canarySuffix) <= validation.DNS1123SubdomainMaxLength {
		return name + canarySuffix
	}
	sum := sha256.Sum256([]byte(name))
	end := "-" + hex.EncodeToString(sum[:4]) + canarySuffix
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(end)], "-.") + end
}
