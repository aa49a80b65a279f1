// A simulated upstream, a berth in front of it, and a browser that may speak to nobody else.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const require = createRequire(join(process.env.NODE_DIR, "node_modules", "x.js"));
const { chromium } = require("playwright-core");
export const AXE = require.resolve("axe-core/axe.min.js");

export const TOKEN = "token-of-the-page-tests";
export const SECRETS = ["a", "b", "c"].map((id) => `sk-page-${id}-0123456789abcdef`);

// `a` refuses whoever is new, inside a stream; `b` serves, and says what is left; `c` has a bad key.
// Everybody refuses the model gpt-full.
const PROGRAM = `
models: [gpt-sim, gpt-full]
credentials:
  ${SECRETS[0]}:
    name: campus-a
    steps: [{refuse: {shape: sse}}]
  ${SECRETS[1]}:
    name: campus-b
    steps:
      - admit:
          headers:
            x-codex-primary-used-percent: "83"
            x-codex-primary-window-minutes: "300"
            x-codex-primary-reset-after-seconds: "5400"
            x-codex-secondary-used-percent: "41"
            x-codex-secondary-window-minutes: "10080"
            x-codex-secondary-reset-after-seconds: "250000"
    by_model:
      gpt-full: {steps: [{refuse: {shape: http_503}}]}
  ${SECRETS[2]}:
    name: campus-c
    steps: [auth]
`;

const CONFIG = ({ edge, admin, sim, folder }) => `
listeners: [{address: "127.0.0.1:${edge}"}]
admin: {address: "127.0.0.1:${admin}", token: {env: PAGE_TOKEN}}
audit: {path: ${join(folder, "audit.jsonl")}}
upstreams: {openai: {base_url: "http://127.0.0.1:${sim}/v1"}}
credentials:
- {id: campus-c, upstream: openai, secret: {env: SECRET_2}}
- {id: campus-a, upstream: openai, secret: {env: SECRET_0}, labels: {cohort: new}}
- {id: campus-b, upstream: openai, secret: {env: SECRET_1}, labels: {cohort: old}}
routes: [{path_prefix: /v1, balance: fill_first}]
admission: {retry_budget: {ratio: 100.0, min_per_second: 10000}, wait: {max_time: 0s}, cooldown: {base: 20s, max: 20s}}
`;

export class Stage {
  static async set() {
    const stage = new Stage();
    stage.folder = mkdtempSync(join(tmpdir(), "berth-page-"));
    [stage.edge, stage.admin, stage.sim] = await Promise.all([freePort(), freePort(), freePort()]);
    const program = join(stage.folder, "sim.yaml");
    const config = join(stage.folder, "berth.yaml");
    writeFileSync(program, PROGRAM);
    writeFileSync(config, CONFIG(stage));
    stage.log = "";
    stage.children = [
      stage.start(["sim", "--listen", `127.0.0.1:${stage.sim}`, "--program", program]),
      stage.start(["run", "-c", config]),
    ];
    stage.url = `http://127.0.0.1:${stage.admin}/`;
    await within(15_000, "berth is ready", async () => (await fetch(`${stage.url}readyz`)).ok);
    await within(15_000, "the simulator is there", async () => (await fetch(`http://127.0.0.1:${stage.sim}/`)).ok);
    stage.browser = await chromium.launch({
      executablePath: process.env.CHROMIUM,
      args: ["--no-sandbox", "--disable-background-networking", "--disable-component-update"],
    });
    return stage;
  }

  start(command) {
    const env = { ...process.env, PAGE_TOKEN: TOKEN };
    SECRETS.forEach((secret, at) => (env[`SECRET_${at}`] = secret));
    const child = spawn(process.env.BERTH_BIN, command, { env, stdio: ["ignore", "ignore", "pipe"] });
    child.stderr.on("data", (text) => (this.log = (this.log + text).slice(-20_000)));
    return child;
  }

  async strike() {
    await this.browser?.close();
    this.children?.forEach((child) => child.kill("SIGKILL"));
    rmSync(this.folder, { recursive: true, force: true });
  }

  // A browser's window of its own; `troubles` is all that should not have been.
  async open(options = {}) {
    const context = await this.browser.newContext({
      httpCredentials: { username: "operator", password: TOKEN },
      viewport: { width: 1280, height: 900 },
      ...options,
    });
    const page = await context.newPage();
    page.setDefaultTimeout(10_000);
    const troubles = [];
    page.on("console", (said) => said.type() === "error" && troubles.push(`console: ${said.text()}`));
    page.on("pageerror", (error) => troubles.push(`error: ${error}`));
    page.on("dialog", (dialog) => troubles.push(`dialog: ${dialog.message()}`));
    context.on("request", (request) => {
      const host = new URL(request.url()).host;
      if (host !== "" && host !== `127.0.0.1:${this.admin}`) troubles.push(`request to ${request.url()}`);
    });
    await page.goto(this.url);
    return { page, context, troubles };
  }

  // A client's request, in a session of its own unless one is named.
  async ask(model = "gpt-sim", session = `s-${Math.random()}`) {
    const answer = await fetch(`http://127.0.0.1:${this.edge}/v1/responses`, {
      method: "POST",
      headers: { "content-type": "application/json", "session-id": session },
      body: JSON.stringify({ model, input: "hi", stream: true }),
    });
    await answer.text();
    return answer.status;
  }

  async operate(method, path) {
    const headers = { authorization: `Bearer ${TOKEN}` };
    return fetch(new URL(path, this.url), { method, headers });
  }

  async status() {
    return (await this.operate("GET", "status")).json();
  }

  async reset() {
    for (const id of ["a", "b", "c"]) {
      for (const verb of ["enable", "reset"]) await this.operate("POST", `credentials/campus-${id}/${verb}`);
    }
  }
}

export async function within(time, what, done) {
  const end = Date.now() + time;
  for (;;) {
    try {
      if (await done()) return;
    } catch {
      // Not yet.
    }
    if (Date.now() > end) throw new Error(`not within ${time} ms: ${what}`);
    await new Promise((again) => setTimeout(again, 50));
  }
}

export function freePort() {
  return new Promise((found, failed) => {
    const server = createServer();
    server.once("error", failed);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => found(port));
    });
  });
}

export const read = (path) => readFileSync(path, "utf8");
