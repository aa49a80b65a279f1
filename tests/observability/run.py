"""The alerts and the board against a real Prometheus that scrapes a real berth.

Everything is on loopback and in a temporary folder: `berth sim` as the upstream, `berth run` in front of it with
some traffic, and a Prometheus that scrapes it once a second. Nothing is waited for by the clock: each step goes on
when what it needs is there, and the whole ends at a deadline. The last line is `N passed, M failed`.
"""

import base64
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONF = ROOT / "conf" / "observability"
BERTH = os.environ["BERTH_BIN"]
DEADLINE = time.monotonic() + 80
TOKEN = "token-of-the-test"
MODEL, FULL = "gpt-sim", "gpt-full"

passed, failed = 0, 0


def check(name, good, why=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(f"{'ok  ' if good else 'FAIL'} {name}{'' if good else f': {why}'}")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def until(what, so):
    """Asks until `so` gives something; ports and scrapes cannot be waited for in another way."""
    while time.monotonic() < DEADLINE:
        try:
            found = so()
            if found:
                return found
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
    raise TimeoutError(f"{what} did not come about")


def token(seconds):
    """A JWT that ends in so many seconds."""
    part = lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
    claims = part({"exp": int(time.time()) + seconds})
    return f"{part({'alg': 'none'})}.{claims}.c2ln"


def expressions(board):
    """Every query of the board, with its variables filled in."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
            yield panel["title"], expr


def names(text):
    """The metrics of berth that an expression names, as /metrics declares them."""
    for name in re.findall(r"\bberth_[a-z_]+", text):
        yield re.sub(r"_bucket$", "", name)


def anchors():
    """The sections of docs/operations.md, as a link names them."""
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs/operations.md").read_text(), re.M)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rules():
    tool = lambda *words: subprocess.run(["promtool", *words], cwd=CONF, capture_output=True, text=True)
    checked = tool("check", "rules", "alerts.yaml")
    check("promtool check rules", checked.returncode == 0, checked.stdout + checked.stderr)
    tested = tool("test", "rules", "alerts_test.yaml")
    check("promtool test rules", tested.returncode == 0, tested.stdout + tested.stderr)
    alerts = (CONF / "alerts.yaml").read_text()
    tests = (CONF / "alerts_test.yaml").read_text()
    there = anchors()
    for alert in re.findall(r"- alert: (\w+)", alerts):
        asked = [part for part in tests.split("- expr: ")[1:] if f'alertname="{alert}", alertstate' in part]
        quiet = sum("exp_samples: []" in part for part in asked)
        check(f"{alert} is tested to fire and not to", 0 < quiet < len(asked), f"{quiet} of {len(asked)} quiet")
    links = re.findall(r'runbook: "docs/operations\.md#([^"]*)"', alerts)
    check("every alert leads to a section", len(links) == alerts.count("- alert:") and set(links) <= there,
          set(links) - there)


class Stage:
    """Everything that runs, ended by `__exit__`."""

    def __init__(self, folder):
        self.folder, self.processes, self.sessions = folder, [], 0
        self.sim, self.edge, self.admin, self.prometheus = (free_port() for _ in range(4))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def run(self, name, *command, **more):
        log = open(self.folder / f"{name}.log", "w")
        environment = {**os.environ, "ADMIN_TOKEN": TOKEN, "RUNTIME_DIRECTORY": str(self.folder)}
        self.processes.append(subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=environment, **more))

    def upstream(self):
        refuse = "{refuse: {shape: sse}}"
        full = f"by_model: {{{FULL}: {{steps: [{refuse}]}}}}"
        keys = {"busy": token(3600), "good": "sk-good", "spare": "sk-spare"}
        for name, secret in keys.items():
            self.write(name, secret)
        program = (
            f"credentials:\n"
            f"  {keys['busy']}: {{name: busy, steps: [{refuse}, admit], then: cycle, {full}}}\n"
            f"  {keys['good']}: {{name: good, {full}}}\n")
        self.run("sim", BERTH, "sim", "--listen", f"127.0.0.1:{self.sim}",
                 "--program", self.write("sim.yaml", program))

    def berth(self):
        config = f"""
listeners: [{{address: "127.0.0.1:{self.edge}"}}]
admin: {{address: "127.0.0.1:{self.admin}", token: {{env: ADMIN_TOKEN}}}}
audit: {{path: {self.folder}/audit.jsonl}}
upstreams: {{sim: {{base_url: "http://127.0.0.1:{self.sim}/v1"}}}}
credentials:
  - {{id: busy, upstream: sim, secret: {{file: {self.folder}/busy}}}}
  - {{id: good, upstream: sim, secret: {{file: {self.folder}/good}}}}
  - {{id: spare, upstream: sim, secret: {{file: {self.folder}/spare}}}}
routes: [{{path_prefix: /v1, balance: fill_first, affinity: {{enabled: false}}}}]
admission:
  retry_budget: {{ratio: 100.0, min_per_second: 10000}}
  wait: {{max_time: 0s}}
  rules:
    - {{name: old, when: {{status: 418}}, verdict: capacity, expires: 2026-01-01}}
"""
        self.run("berth", BERTH, "run", "-c", self.write("berth.yaml", config))
        until("berth", lambda: ask(self.admin, "GET", "/readyz")[0] == 200)
        status, answer = self.operate("POST", "/credentials/spare/hold-out?for=5m")
        assert status < 300, answer

    def watch(self):
        """Prometheus, by the example of conf/observability with other places in it."""
        example = (CONF / "prometheus.yaml").read_text()
        places = {
            "/etc/prometheus/berth-admin-token": str(self.write("token", TOKEN)),
            "127.0.0.1:9090": f"127.0.0.1:{self.admin}",
            "scrape_interval: 15s": "scrape_interval: 1s",
            "- alerts.yaml": f"- {CONF / 'alerts.yaml'}",
        }
        for old, new in places.items():
            assert old in example, old
            example = example.replace(old, new)
        config = self.write("prometheus.yml", "global: {evaluation_interval: 1s}\n" + example)
        self.run("prometheus", "prometheus", f"--config.file={config}",
                 f"--storage.tsdb.path={self.folder / 'data'}",
                 f"--web.listen-address=127.0.0.1:{self.prometheus}")
        until("a scrape", lambda: self.query('up{job="berth"} == 1')["result"])

    def traffic(self, requests, model=MODEL):
        """The statuses of so many requests, each of a session of its own."""
        statuses = []
        for _ in range(requests):
            self.sessions += 1
            headers = {"content-type": "application/json", "session_id": f"session-{self.sessions}"}
            body = json.dumps({"model": model, "input": "hi", "stream": True})
            statuses.append(ask(self.edge, "POST", "/v1/responses", body, headers)[0])
        return statuses

    def operate(self, method, path):
        return ask(self.admin, method, path, headers={"authorization": f"Bearer {TOKEN}"})

    def query(self, expr):
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expr})
        status, text = ask(self.prometheus, "GET", path)
        if status == 503:
            raise OSError("Prometheus still starts")
        answer = json.loads(text)
        if answer.get("status") != "success":
            raise ValueError(f"{status} {answer.get('error')}")
        return answer["data"]


def live(stage):
    stage.upstream()
    stage.berth()
    answers = stage.traffic(20)
    check("20 requests are served", answers == [200] * 20, answers)
    refused = stage.traffic(5, FULL)
    check("5 of a model that is full are not", refused == [503] * 5, refused)
    stage.watch()

    # Two scrapes with traffic between them, so that a rate has something to say.
    def is_counted():
        stage.traffic(5)
        return stage.query("sum(rate(berth_requests_total[10s])) > 0")["result"]
    until("a rate", is_counted)

    stage.traffic(5, FULL)
    declared = set(re.findall(r"^# TYPE (\w+)", stage.operate("GET", "/metrics")[1], re.M))
    board = json.loads((CONF / "grafana.json").read_text())
    queries = list(expressions(board))
    used = {name for _, expr in queries for name in names(expr)}
    used |= set(names((CONF / "alerts.yaml").read_text()))
    check(f"berth has the {len(used)} metrics that alerts and board name", used and used <= declared, used - declared)

    check("the board has queries", len(queries) > 15, len(queries))
    for title, expr in queries:
        try:
            found = until_data(stage, expr)
            check(f"board: {title}", found, f"no data: {expr}")
        except ValueError as error:
            check(f"board: {title}", False, f"{error}: {expr}")

    fired = until("an alert", lambda: {
        (alert["metric"]["alertname"], alert["metric"].get("rule") or alert["metric"].get("credential"))
        for alert in stage.query('ALERTS{alertstate="firing"}')["result"]})
    expected = {("BerthRuleExpired", "old"), ("BerthCredentialTokenEnds", "busy")}
    check("what is to be told of this berth is told, and nothing else", fired == expected, fired)


def until_data(stage, expr):
    """What the query finds, within some scrapes."""
    for _ in range(40):
        stage.traffic(1), stage.traffic(1, FULL)
        found = stage.query(expr)["result"]
        if found:
            return found
        time.sleep(0.1)
    return []


def main():
    rules()
    with tempfile.TemporaryDirectory(prefix="berth-observability-") as folder:
        with Stage(pathlib.Path(folder)) as stage:
            try:
                live(stage)
            except (OSError, TimeoutError, ValueError, AssertionError, http.client.HTTPException) as error:
                check("the stage", False, f"{type(error).__name__}: {error}")
            if failed:
                for log in sorted(pathlib.Path(folder).glob("*.log")):
                    print(f"-- {log.name}", *log.read_text().splitlines()[-15:], sep="\n   ")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
