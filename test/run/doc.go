// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command run runs end-to-end suites, several side by side, and prints how long each took and what failed.
//
//	go run ./test/run                          every suite, every test
//	go run ./test/run -level test              what `make test` runs
//	go run ./test/run -matrix                  every suite, and a smoke course on each other version
//	go run ./test/run -count 5 batchrelease    one suite, five times
//	go run ./test/run -run '^TestUndo' argo    some of its tests
//
// The requirement table of test/README.md decides which tests belong to the levels smoke and test: there is no other list. A
// level fails if a test that the table names for it did not run. A test that fails is not run again.
package main
