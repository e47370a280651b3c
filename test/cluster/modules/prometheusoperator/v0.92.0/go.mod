module github.com/lockstep-rollouts/lockstep/test/cluster/modules/prometheusoperator

go 1.26.0

// Nothing is built from it: the CRDs in its folder are installed.
require github.com/prometheus-operator/prometheus-operator v0.92.0
