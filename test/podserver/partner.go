// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package podserver

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// AnnotationCalls names another role, on the pods of a role of a DisaggregatedSet. Each request to a leader then makes one to a leader of that
// role, which takes half of the request's duration. The leader is chosen as llm-d's router does: at random among the ready ones whose label
// disaggregatedset.x-k8s.io/revision is the same, from a cache of the pods. A leader counts as ready once its whole group is, as one of vLLM
// does: its probe answers once the model is loaded on all pods. These pods have no probe.
const AnnotationCalls = "test.lockstep.dev/calls"

// partnerOf returns the key of a leader in the index of partners.
func partnerOf(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || roleOf(pod) != podanswer.RoleLeader || pod.Labels[disaggregated.SetNameLabelKey] == "" {
		return nil, nil
	}
	return []string{partnerKey(pod, pod.Labels[disaggregated.RoleLabelKey])}, nil
}

func partnerKey(pod *corev1.Pod, role string) string {
	return strings.Join([]string{pod.Namespace, pod.Labels[disaggregated.SetNameLabelKey], role, pod.Labels[disaggregated.RevisionLabelKey]}, "/")
}

// partner returns a ready leader of a role, at the revision of a pod. It is nil if there is none.
func (p *pods) partner(pod *corev1.Pod, role string) *corev1.Pod {
	objects, _ := p.index.ByIndex(byPartner, partnerKey(pod, role)) // the index exists
	var ready []*corev1.Pod
	for _, object := range objects {
		other, ok := object.(*corev1.Pod)
		if !ok || !Ready(other) || other.DeletionTimestamp != nil {
			continue
		}
		if members, err := p.group(other); err == nil {
			if complete, _ := whole(other, members); complete {
				ready = append(ready, other)
			}
		}
	}
	if len(ready) == 0 {
		return nil
	}
	return ready[rand.IntN(len(ready))]
}

// call sends the rest of a request to a partner, and adds its answer.
func (s *Server) call(ctx context.Context, pod *corev1.Pod, answer *podanswer.Answer, duration time.Duration) {
	role := pod.Annotations[AnnotationCalls]
	partner := s.pods.partner(pod, role)
	if partner == nil {
		answer.Violation, answer.Detail = podanswer.Unpaired, "no leader of role "+role+" is ready at its revision"
		return
	}
	answer.Partner = &podanswer.Answer{}
	if err := s.send(ctx, partner.Status.PodIP, duration, answer.Partner); err != nil {
		answer.Violation, answer.Detail = podanswer.Unpaired, fmt.Sprintf("%s: %v", partner.Name, err)
		return
	}
	if answer.Violation = answer.Partner.Violation; answer.Violation != "" {
		answer.Detail = partner.Name + " " + answer.Partner.Detail
	}
}

// send sends a request to a pod.
func (s *Server) send(ctx context.Context, ip string, duration time.Duration, answer *podanswer.Answer) error {
	address := url.URL{
		Scheme: "http", Host: net.JoinHostPort(ip, strconv.Itoa(Port)), Path: "/v1/completions", RawQuery: url.Values{"duration": {duration.String()}}.Encode(),
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address.String(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	return json.NewDecoder(response.Body).Decode(answer)
}
