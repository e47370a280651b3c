module github.com/lockstep-rollouts/lockstep/test/cluster/modules/gatewayapi

go 1.26.0

// Nothing is built from them: the CRDs in their folders are installed.
require (
	sigs.k8s.io/gateway-api v1.4.1
	sigs.k8s.io/gateway-api-inference-extension v1.2.0
)
