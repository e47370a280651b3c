module github.com/lockstep-rollouts/lockstep/test/cluster/modules/keda

go 1.26.0

// Nothing is built from it: the CRD in its folder is installed.
require github.com/kedacore/keda/v2 v2.19.0
