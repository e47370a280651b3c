// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// A host in one file: it connects to a driver over gRPC and takes one workload through a canary release. It keeps no state:
// the next step depends only on the context that the driver sends.

import { parseArgs } from "node:util";
import { setTimeout as sleep } from "node:timers/promises";
import { credentials, status, type ServiceError } from "@grpc/grpc-js";
import { type BatchContext, FinalizeIntent, GroupRole, State } from "./gen/lockstep/v1alpha1/batch.js";
import {
  FinalizeRequest,
  GetDriverInfoRequest,
  type GetDriverInfoResponse,
  InitializeRequest,
  UpgradeBatchRequest,
  WatchBatchContextRequest,
  type WatchBatchContextResponse,
  WorkloadDriverClient,
} from "./gen/lockstep/v1alpha1/driver.js";
import { Style } from "./gen/lockstep/v1alpha1/policy.js";

const { values: flags } = parseArgs({
  options: {
    address: { type: "string", default: "unix:///run/lockstep/lockstep.sock" },
    namespace: { type: "string", default: "default" },
    workload: { type: "string" },
    batches: { type: "string", default: "25%,50%,100%" },
    pause: { type: "string", default: "0" }, // seconds
    "release-id": { type: "string", default: `host-node-${Date.now()}` },
  },
});
const workload = { namespace: flags.namespace, name: flags.workload };
const releaseId = flags["release-id"];
const driver = new WorkloadDriverClient(flags.address, credentials.createInsecure());

/** call calls a unary RPC. */
function call<Q, R>(rpc: (request: Q, done: (error: ServiceError | null, response: R) => void) => unknown, request: Q) {
  return new Promise<R>((resolve, reject) => {
    rpc.call(driver, request, (error, response) => (error ? reject(error) : resolve(response)));
  });
}

/** begin starts or resumes the release: the request is idempotent. */
async function begin() {
  const policy = { style: Style.STYLE_CANARY, batches: flags.batches.split(",") };
  await call(driver.initialize, InitializeRequest.create({ workload, releaseId, policy, owner: "host-node" }));
}

/**
 * upgrade requests a batch of the revision. If the template has changed, the driver refuses with ABORTED, and the release
 * starts again with the new one.
 */
async function upgrade(context: BatchContext, batch: number) {
  const { updateRevision } = context;
  const target = { $case: "batch", value: batch } as const;
  await call(driver.upgradeBatch, UpgradeBatchRequest.create({ workload, releaseId, updateRevision, target }));
}

/** finalize ends the release. The driver completes it even if this host exits. */
async function finalize({ updateRevision }: BatchContext, intent: FinalizeIntent) {
  await call(driver.finalize, FinalizeRequest.create({ workload, releaseId, updateRevision, intent }));
}

/** act makes the call that a state requires. In other states the driver is at work, and will send the next context. */
async function act(context: BatchContext) {
  switch (context.state) {
    case State.STATE_HOLDING:
      return upgrade(context, 0);
    case State.STATE_FAILED:
      return finalize(context, FinalizeIntent.FINALIZE_INTENT_ROLLBACK);
    case State.STATE_READY: {
      const next = (context.currentBatch ?? 0) + 1;
      if (next === context.batches) return finalize(context, FinalizeIntent.FINALIZE_INTENT_PROMOTE);
      await sleep(Number(flags.pause) * 1000);
      return upgrade(context, next);
    }
  }
}

let printed = "";

/** print prints a line for each change: the state, and a mark per group. */
function print(context: BatchContext) {
  const marks = (role: GroupRole) =>
    context.groups.filter((group) => group.role === role).map((group) => (group.ready ? "#" : ".")).join("").padEnd(8);
  const state = context.state.replace("STATE_", "").padEnd(12);
  const stable = marks(GroupRole.GROUP_ROLE_STABLE);
  const line = `${state} stable ${stable} canary ${marks(GroupRole.GROUP_ROLE_CANARY)}`;
  if (line !== printed) console.log(line, context.message);
  printed = line;
}

/** release acts on each state of the release until it ends, and returns the last state. */
async function release(): Promise<State> {
  await begin();
  const request = WatchBatchContextRequest.create({ workload, releaseId, includeGroups: true });
  const stream = driver.watchBatchContext(request);
  try {
    for await (const { context } of stream as AsyncIterable<WatchBatchContextResponse>) {
      if (!context) continue;
      print(context);
      switch (context.state) {
        case State.STATE_COMPLETED:
        case State.STATE_ROLLED_BACK:
        case State.STATE_NOTHING_TO_RELEASE:
          return context.state;
      }
      await act(context);
    }
  } finally {
    stream.cancel();
  }
  throw Object.assign(new Error("the driver ended the stream"), { code: status.UNAVAILABLE });
}

/** run drives the release. It retries calls that fail with a transient error. */
async function run(): Promise<State> {
  const info = await call<GetDriverInfoRequest, GetDriverInfoResponse>(driver.getDriverInfo, {});
  console.log(`driver ${info.name} ${info.version}, release ${releaseId}`);
  for (;;) {
    try {
      return await release();
    } catch (error) {
      const { code } = error as ServiceError;
      if (code !== status.ABORTED && code !== status.UNAVAILABLE) throw error;
      console.error(`host-node: retrying: ${(error as Error).message}`);
      await sleep(1000);
    }
  }
}

if (!flags.workload) throw new Error("--workload is required");
process.once("SIGINT", () => {
  console.error(`\nhost-node: the release stays where it is; resume it with --release-id ${releaseId}`);
  process.exit(130);
});
try {
  if ((await run()) === State.STATE_ROLLED_BACK) throw new Error("the release was rolled back");
} catch (error) {
  console.error(`host-node: ${(error as Error).message}`);
  process.exitCode = 1;
}
driver.close();
