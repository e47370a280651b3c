// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The message of a missing permission names the ClusterRoles of config/base that grant it.
func TestContractErrorNamesClusterRole(t *testing.T) {
	for gr, roles := range map[schema.GroupResource]string{
		{Resource: "pods"}: "ClusterRole lockstep-driver-core grants it",
		{Group: "discovery.k8s.io", Resource: "endpointslices"}: "ClusterRole lockstep-driver-gateway or lockstep-driver-ingress grants it",
		{Group: "lockstep.dev", Resource: "replicabounds"}:      "ClusterRole lockstep-driver-disaggregated grants it",
	} {
		forbidden := apierrors.NewForbidden(gr, "", fmt.Errorf("User \"x\" cannot list resource %q in API group %q at the cluster scope", gr.Resource, gr.Group))
		lwstest.ErrorContains(t, ContractError(fmt.Errorf("fill the cache: %w", forbidden)), roles)
	}
}

func TestContractError(t *testing.T) {
	gr := schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}
	for _, tt := range []struct {
		name string
		err  error
		want pb.ErrorReason
	}{
		{"conflict", apierrors.NewConflict(gr, "vllm", errors.New("changed")), pb.ErrorReason_ERROR_REASON_CONFLICT},
		{"deleted meanwhile", apierrors.NewNotFound(gr, "vllm"), pb.ErrorReason_ERROR_REASON_CONFLICT},
		{"bounds not known yet", fmt.Errorf("scale: %w", apierrors.NewForbidden(gr, "vllm", errors.New(
			"ValidatingAdmissionPolicy 'lockstep-bounds' with binding 'lockstep-bounds' denied request: exactly 0 groups"))), pb.ErrorReason_ERROR_REASON_CONFLICT},
		{"policy not ready", &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: `leaderworkersets ` +
			`"llm" is forbidden: ValidatingAdmissionPolicy 'lockstep-bounds' denied request: failed to configure policy: failed to find resource referenced by paramKind`}},
			pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"policies not ready", apierrors.NewForbidden(gr, "vllm", errors.New("not yet ready to handle request")), pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"may not", apierrors.NewForbidden(gr, "vllm", errors.New(
			`User "system:serviceaccount:a:b" cannot patch resource "leaderworkersets" in API group "leaderworkerset.x-k8s.io" in the namespace "x"`)),
			pb.ErrorReason_ERROR_REASON_FORBIDDEN},
		{"may not read a path", apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(`User "x" cannot get path "/"`)),
			pb.ErrorReason_ERROR_REASON_FORBIDDEN},
		{"unauthenticated", apierrors.NewUnauthorized("who are you"), pb.ErrorReason_ERROR_REASON_FORBIDDEN},
		{"webhook forbids", answer403(`admission webhook "v.example.com" denied the request: you cannot do that`),
			pb.ErrorReason_ERROR_REASON_REJECTED},
		{"policy forbids", apierrors.NewForbidden(gr, "vllm", errors.New("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: a user cannot")),
			pb.ErrorReason_ERROR_REASON_REJECTED},
		{"quota", apierrors.NewForbidden(gr, "vllm", errors.New("exceeded quota: q, requested: count/leaderworkersets=1")),
			pb.ErrorReason_ERROR_REASON_REJECTED},
		{"webhook refuses", apierrors.NewBadRequest("admission webhook denied"), pb.ErrorReason_ERROR_REASON_REJECTED},
		{"throttled", apierrors.NewTooManyRequests("slow down", 1), pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"etcd has no leader", apierrors.NewInternalError(errors.New("no leader")), pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"connection refused", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"connection cut", io.ErrUnexpectedEOF, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"caches behind", ErrBehind, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"caller's deadline", context.DeadlineExceeded, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"name taken", apierrors.NewAlreadyExists(gr, "vllm"), pb.ErrorReason_ERROR_REASON_NAME_TAKEN},
		{"no turn before the caller's deadline", throttled(t), pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"answer cut", fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", errors.New("http2: GOAWAY")),
			pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
		{"anything else", errors.New("?"), pb.ErrorReason_ERROR_REASON_INTERNAL},
		{
			"has a reason", drivererr.New(pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER, "x"),
			pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := drivererr.Reason(ContractError(fmt.Errorf("patch vllm: %w", tt.err)))
			assert.Equal(t, tt.want, got, "reason %s, want %s", got, tt.want)
		})
	}
	assert.NoError(t, ContractError(nil), "no error became one")
}

// throttled returns the error of a request whose client makes too many for its call to wait.
func throttled(t *testing.T) error {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "127.0.0.1:1", RateLimiter: flowcontrol.NewTokenBucketRateLimiter(1e-6, 1)})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 { // the first one takes the only token
		_, err = client.CoreV1().Pods("default").Get(ctx, "vllm-0", metav1.GetOptions{})
	}
	return err
}

// answer403 is what the API server makes of a webhook's 403.
func answer403(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: message,
	}}
}

// A refusal keeps the API server's own words.
func TestRefusalKeepsMessage(t *testing.T) {
	lwstest.ErrorContains(t, ContractError(fmt.Errorf("patch vllm: %w", answer403("exceeded quota: gpus"))), "patch vllm", "exceeded quota: gpus")
}
