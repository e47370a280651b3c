// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package policyfile_test

import (
	"fmt"

	"github.com/lockstep-rollouts/lockstep/plugin/policyfile"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func Example() {
	policy := &pb.ReleasePolicy{}
	err := policyfile.ReadJSON([]byte(`{"style": "BlueGreen", "batches": [1, 4], "min_ready": "1m30s", "blueGreen": {"promotion": "adopt"}}`), policy)
	fmt.Println(err, policy.GetStyle(), policy.GetBatches(), policy.GetMinReady().AsDuration(), policy.GetBlueGreen().GetPromotion())
	fmt.Println(policyfile.ReadJSON([]byte(`{"traffic": {"drain": {"period": "-1s"}}}`), policy))
	// Output:
	// <nil> STYLE_BLUE_GREEN [1 4] 1m30s BLUE_PROMOTION_ADOPT
	// traffic.drain.period: "-1s" is not a duration; want for example 90s or 30m
}
