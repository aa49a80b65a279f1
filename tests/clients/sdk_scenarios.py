"""What the SDKs must get through.

A scenario is one row of the report: the same condition over each API of a client, each call on a
lane of its own and with a model of its own, so that no call profits from what another has taught.
The SDKs' own retries are off unless the scenario is about them.
"""

import json
import os
import pathlib
import subprocess
import time

from edge import Edge, Lane, end, start
from report import Checks, Result, evidence
from steps import CAPACITY, SHAPES

HERE = pathlib.Path(__file__).parent
OPENAI_APIS = ["responses", "responses stream", "responses helper", "chat", "chat stream"]
ANTHROPIC_APIS = ["messages", "messages stream", "messages helper"]
PYTHON = [os.environ["PYTHON_DIR"] + "/bin/python", str(HERE / "calls.py")]
NODE = ["node", str(HERE / "calls.mjs")]

# name: (command, dialect, APIs)
CLIENTS = {
    "openai-python": (PYTHON, "openai", OPENAI_APIS),
    "openai-node": (NODE, "openai", OPENAI_APIS),
    "anthropic-python": (PYTHON, "anthropic", ANTHROPIC_APIS),
}
# After two pieces of text; what a client must never take for the whole.
BROKEN = {
    "cut": {"cut": {"after": 2}},
    "cut mid-frame": {"cut": {"after": 2, "mid_frame": True}},
    "reset": {"reset_after": {"deltas": 2}},
    "no terminal": "no_terminal",
}


def scenarios():
    """(name, function of a folder); each gives the rows of one client."""
    for client in CLIENTS:
        yield f"{client} fails over", lambda folder, client=client: run(folder, client, fails_over(client))
        yield f"{client} is told", lambda folder, client=client: run(folder, client, is_told(client))


class Row:
    """One condition: the credentials' steps, and what each call must come to."""

    def __init__(self, name, expected, tracks, verify, apis=None, retries=0):
        self.name, self.expected, self.tracks, self.verify = name, expected, tracks, verify
        self.apis, self.retries = apis, retries


def fails_over(client):
    for shape, step in SHAPES.items():
        yield Row(f"first refuses: {shape}", "right text and usage, no retry", [[step], ["admit"]], answered("b"))
    yield Row("nobody refuses", "right text and usage, no retry", [["admit"]], answered("a"))


def is_told(client):
    """What cannot be hidden must come as the error that the SDK's users handle."""
    _, _, apis = CLIENTS[client]
    for shape in CAPACITY:
        yield Row(f"all refuse: {shape}", "InternalServerError 503, Retry-After", [[SHAPES[shape]]] * 4, unavailable)
    limited = {"rate_limit": {"retry_after": "2s"}}
    yield Row("all limited", "RateLimitError 429, Retry-After", [[limited]] * 2, rate_limited)
    yield Row("all refuse once", "the SDK's own retry gets the text",
              [[SHAPES["http_503"], "admit"]], answered("a"), retries=2)
    yield Row("all limited once", "the SDK's own retry gets the text",
              [[{"rate_limit": {"retry_after": "1s"}}, "admit"]], answered("a"), retries=2)
    streams = [api for api in apis if " " in api]
    for name, step in BROKEN.items():
        yield Row(f"after output: {name}", "raises, never looks complete", [[step], ["admit"]], broken, streams)
    whole = [api for api in apis if " " not in api]
    yield Row("document cut", "right text and usage, no retry", [[BROKEN["cut"]], ["admit"]], answered("b"), whole)
    refusal = {"refuse_after_output": {"deltas": 2}}
    yield Row("after output: refusal", "never looks complete", [[refusal], ["admit"]], incomplete, streams)
    if not client.startswith("anthropic"):
        yield Row("models", "the list of models", [["admit"]], listed, ["models"])


def answered(letter):
    def verify(seen, lane, audit, checks):
        checks.that(not seen["error"], f"raised {told(seen)}")
        checks.equal("text", seen["text"], lane.text(letter))
        checks.that(seen["complete"], "does not look complete")
        checks.that(seen["usage"], "no usage")
        if letter == "b":
            first = audit[0]["attempts"][0] if audit and audit[0]["attempts"] else {}
            checks.equal("first asked", first.get("credential"), f"{lane.name}-a")
            checks.that(first.get("verdict") != "admitted", "the first credential did not refuse")
            checks.equal("requests of the client", len(audit), 1)
    return verify


def unavailable(seen, lane, audit, checks):
    raised(seen, "InternalServerError", 503, checks)


def rate_limited(seen, lane, audit, checks):
    raised(seen, "RateLimitError", 429, checks)


def raised(seen, kind, status, checks):
    error = seen["error"] or {"classes": [], "status": None, "retry_after": None}
    checks.that(kind in error["classes"], f"raised {told(seen)}, expected {kind}")
    checks.equal("status", error["status"], status)
    after = error["retry_after"] or ""
    checks.that(after.isdigit() and 1 <= int(after) <= 3, f"Retry-After {after!r}, expected 1 to 3")


def broken(seen, lane, audit, checks):
    incomplete(seen, lane, audit, checks)
    checks.that(seen["error"], f"raised nothing; last event {seen.get('last')}, code {seen.get('code')}")


def incomplete(seen, lane, audit, checks):
    checks.that(not seen["complete"], "looks complete")
    checks.that(lane.text("b") not in seen["text"], "a second answer was spliced on")
    checks.that(seen["text"], "no output came before the cut, so nothing was tested")
    checks.that(seen.get("code") not in ("server_is_overloaded", "slow_down"), f"told the code {seen.get('code')}")


def listed(seen, lane, audit, checks):
    checks.that(not seen["error"], f"raised {told(seen)}")
    checks.equal("models", seen["text"], "gpt-5.5")


def told(seen):
    error = seen["error"]
    return f"{error['classes'][0]} {error['status']}: {error['text'][:120]}" if error else "nothing"


def run(folder, client, rows):
    command, dialect, apis = CLIENTS[client]
    rows = list(rows)
    calls = [
        (row, api, Lane(f"{row.name} {api}".replace(":", ""), *row.tracks))
        for row in rows
        for api in row.apis or apis
    ]
    with Edge(folder, [lane for _, _, lane in calls], dialect) as edge:
        # Anthropic's SDK adds the `/v1` itself.
        bases = {lane.name: edge.base(lane).removesuffix("/v1" if dialect == "anthropic" else "") for _, _, lane in calls}
        tasks = [
            {"id": lane.name, "api": api, "model": f"model-{lane.name}", "base": bases[lane.name], "retries": row.retries}
            for row, api, lane in calls
        ]
        begun = time.monotonic()
        output, errors = talk(command, json.dumps(tasks))
        seconds = time.monotonic() - begun
        seen = {answer["id"]: answer for answer in map(json.loads, output.splitlines())}
        results = []
        for row in rows:
            checks, shown, good = Checks(), "", 0
            mine = [(api, lane) for other, api, lane in calls if other is row]
            for api, lane in mine:
                one = Checks()
                answer = seen.get(lane.name)
                one.that(answer, f"no result: {errors[-500:]}")
                if answer:
                    row.verify(answer, lane, edge.audited(lane, one), one)
                if one.faults:
                    checks.that(False, f"{api}: " + ", ".join(one.faults))
                    shown += f"### {api}\n" + evidence(json.dumps(answer, indent=1), edge, lane)
                else:
                    good += 1
            got = f"{good} of {len(mine)}: " + ", ".join(api for api, _ in mine)
            # One process makes all the calls of a client, so a row has no time of its own.
            results.append(Result(row.name, client, row.expected, checks, got, shown, seconds / len(rows)))
        return results


def talk(command, text):
    environment = {**os.environ, "NO_PROXY": "127.0.0.1,localhost"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(command, env=environment, text=True, **pipes)
    try:
        return process.communicate(text, timeout=120)
    except subprocess.TimeoutExpired:
        end(process)
        return process.communicate()
    finally:
        end(process)
