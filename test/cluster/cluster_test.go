// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lockstep-rollouts/lockstep/test/tlstest"
)

func TestPortsAreExclusive(t *testing.T) {
	var first, second ports
	defer first.release()
	defer second.release()
	a, err := first.take(t.Context(), 50)
	if err != nil {
		t.Fatal(err)
	}
	b, err := second.take(t.Context(), 50)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	if len(slices.Compact(all)) != 100 {
		t.Error("a port was reserved twice")
	}
	if claim, err := claimPort(t.Context(), a[0]); err == nil {
		_ = claim.Close()
		t.Error("a port of another cluster can be claimed")
	}
	first.release()
	claim, err := claimPort(t.Context(), a[0])
	if err != nil {
		t.Fatalf("a released port cannot be claimed: %v", err)
	}
	_ = claim.Close()
}

// Clients of one cluster don't trust the servers of another.
func TestClientsTrustTheirClusterOnly(t *testing.T) {
	ours, theirs := tlstest.NewCA(t), tlstest.NewCA(t)
	pair, err := ours.Issue("localhost")
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	defer server.Close()
	for _, test := range []struct {
		name string
		ca   *tlstest.CA
		want bool
	}{{"own", ours, true}, {"other", theirs, false}} {
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: test.ca.Pool()}}}
		response, err := client.Get(server.URL)
		if err == nil {
			_ = response.Body.Close()
		}
		if (err == nil) != test.want {
			t.Errorf("client of the %s cluster: %v", test.name, err)
		}
	}
}

func TestWriteKubeconfigRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	want := &rest.Config{Host: "https://127.0.0.1:1", BearerToken: "token", TLSClientConfig: rest.TLSClientConfig{CAData: tlstest.NewCA(t).PEM}}
	if err := WriteKubeconfig(want, path); err != nil {
		t.Fatal(err)
	}
	got, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != want.Host || got.BearerToken != want.BearerToken || string(got.CAData) != string(want.CAData) {
		t.Errorf("got %v", got)
	}
}

func TestNode(t *testing.T) {
	o, err := newOptions([]Option{WithNodes(6, corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")})})
	if err != nil {
		t.Fatal(err)
	}
	n := node(5, o.resources)
	if n.Name != "node-5" || n.Labels[LabelRack] != "rack-1" || n.Labels[corev1.LabelTopologyZone] != "zone-1" {
		t.Errorf("node 5 is %s with labels %v", n.Name, n.Labels)
	}
	gpus, cpus := n.Status.Allocatable["nvidia.com/gpu"], n.Status.Allocatable[corev1.ResourceCPU]
	if gpus.Value() != 4 || cpus.Value() != 64 {
		t.Errorf("node 5 offers %v", n.Status.Allocatable)
	}
}

func TestStagesAreComplete(t *testing.T) {
	files, err := fs.Glob(stages, "stages/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	all := ""
	for _, file := range files {
		content, err := stages.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := decodeManifest(content)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, object := range objects {
			if object.GetKind() != "Stage" || names[object.GetName()] {
				t.Errorf("%s: %s %s is not a stage, or a duplicate", file, object.GetKind(), object.GetName())
			}
			names[object.GetName()] = true
		}
		all += string(content)
	}
	for _, word := range []string{
		AnnotationStartup, AnnotationWarmup, AnnotationTermination, AnnotationBehavior, AnnotationPeriod,
		BehaviorNeverReady, BehaviorCrash, BehaviorImagePull, BehaviorFlap,
	} {
		if !strings.Contains(all, word) {
			t.Errorf("no stage has %s", word)
		}
	}
}

func TestMakeDir(t *testing.T) {
	t.Run("refuses what is not empty", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := makeDir(dir); err == nil {
			t.Error("a directory with files was accepted")
		}
	})
	t.Run("sweeps what was abandoned", func(t *testing.T) {
		temporary := t.TempDir()
		abandoned, owned := filepath.Join(temporary, dirPrefix+"1"), filepath.Join(temporary, dirPrefix+"2")
		for _, dir := range []string{abandoned, owned} {
			_, owner, err := makeDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if dir == owned {
				defer func() { _ = owner.Close() }()
			} else {
				_ = owner.Close()
			}
		}
		sweep(temporary, time.Now())
		if !exists(abandoned) {
			t.Error("it was removed before a day had passed")
		}
		sweep(temporary, time.Now().Add(2*abandonedAfter))
		if exists(abandoned) || !exists(owned) {
			t.Errorf("abandoned: %t, owned: %t; want only the owned one", exists(abandoned), exists(owned))
		}
	})
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 5000)+"\nlast line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path); got != "last line\n" {
		t.Errorf("got %d bytes ending in %q", len(got), got[max(0, len(got)-20):])
	}
	if got := tail(path + "-missing"); !strings.Contains(got, "no such file") {
		t.Errorf("got %q", got)
	}
}
