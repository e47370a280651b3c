// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package encoded_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/encoded"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestMessage(t *testing.T) {
	want := &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: &pb.BatchContext{Message: "hello", Replicas: 3}}}
	m, err := encoded.New(want)
	require.NoError(t, err)
	for name, encode := range map[string]func() ([]byte, error){
		"shared": func() ([]byte, error) {
			buffers, err := encoded.Codec().Marshal(m)
			return buffers.Materialize(), err
		},
		"by another codec": func() ([]byte, error) { return proto.Marshal(m) },
		"another message": func() ([]byte, error) {
			buffers, err := encoded.Codec().Marshal(want)
			return buffers.Materialize(), err
		},
	} {
		raw, err := encode()
		got := &pb.WatchWorkloadsResponse{}
		if err := proto.Unmarshal(raw, got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		assert.NoError(t, err, name)
	}
	same, err := encoded.New(proto.CloneOf(want))
	assert.True(t, err == nil && m.Sum == same.Sum && m.Sum != encoded.Sum{}, "equal messages differ, or one equals none: %v", err)
}
