// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// FuzzTrafficAnnotation: the annotation on a canary is read as it was written, or reported.
func FuzzTrafficAnnotation(f *testing.F) {
	f.Fuzz(func(t *testing.T, value string) {
		w := &lws.LeaderWorkerSet{}
		w.Annotations = map[string]string{record.TrafficAnnotation: value}
		policy, drain, err := trafficPolicyOn(w)
		if err != nil {
			assert.True(t, policy == nil && drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "a policy %v beside %v", policy, err)
			return
		}
		if policy == nil {
			assert.Empty(t, value, "%q is no policy, and no error says so", value)
			return
		}
		message := &pb.TrafficPolicy{}
		require.NoError(t, protojson.Unmarshal([]byte(value), message))
		w.Annotations[record.TrafficAnnotation], err = record.EncodeTraffic(message)
		require.NoError(t, err, "what was read can't be written")
		again, drainAgain, err := trafficPolicyOn(w)
		assert.True(t, err == nil && again != nil && again.StableService == policy.StableService && len(again.Routes) == len(policy.Routes) && drainAgain == drain,
			"%q reads as %v, and what is written then as %v, %v", value, policy, again, err)
	})
}
