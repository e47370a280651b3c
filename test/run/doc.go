// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command run runs end-to-end suites concurrently, and prints the time of each and the tests that failed. In the folder test:
//
//	go run ./run                          every suite, every test
//	go run ./run -level test e2e          what `make test` runs
//	go run ./run -level test -without e2e what `make test-others` runs
//	go run ./run -matrix                  every suite, and smoke tests on each other version
//	go run ./run -count 5 batchrelease    one suite, five times
//	go run ./run -run '^TestUndo' argo    some of its tests
//
// What a test proves, and in which level it runs, is in its comment: "Proves (test): REQUIREMENT." The table in test/README.md is generated
// from these. A level fails if one of its tests did not run. A test that fails is not retried.
package main
