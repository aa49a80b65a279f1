"""What the Codex CLI must get through. Each function is one scenario and returns one `Result`."""

import datetime
import re
import time

from codex import CALL, ESCALATED_CALL, MARKER, REVIEWER, Task
from edge import Edge, Lane, wait_for
from report import Checks, Result, evidence
from steps import SHAPES

CLIENT = "codex"
CAPACITY = re.compile("at capacity", re.IGNORECASE)
UNHEARD = "done, exit 0, user hears nothing"


def scenarios():
    """(name, function of a folder), the long ones first."""
    yield "all refuse: sse", lambda folder: all_refuse(folder, "sse")
    yield "all refuse: http_503", lambda folder: all_refuse(folder, "http_503")
    yield "all limited", lambda folder: all_refuse(folder, "rate_limit")
    yield "all refuse: json_200", lambda folder: all_refuse(folder, "json_200")
    for shape in SHAPES:
        yield f"first refuses: {shape}", lambda folder, shape=shape: first_refuses(folder, shape)
        yield f"refused mid-task: {shape}", lambda folder, shape=shape: refused_mid_task(folder, shape)
    yield "plain text", plain_text
    yield "websocket", websocket
    yield "zstd body", zstd_body
    yield "reviewer", reviewer
    yield "control: no berth", control_without_berth
    yield "control: mode off", control_mode_off


def first_refuses(folder, shape):
    """Every request meets the refusal first; the other credential asks for a command, then speaks."""
    lane = Lane("task", [SHAPES[shape]], [CALL, "admit"])
    return _through(folder, f"first refuses: {shape}", lane, ran=[MARKER])


def refused_mid_task(folder, shape):
    """The command comes from one credential, which then refuses what follows on its result."""
    lane = Lane("task", [CALL, SHAPES[shape]], ["admit"])
    return _through(folder, f"refused mid-task: {shape}", lane, ran=[MARKER])


def plain_text(folder):
    return _through(folder, "plain text", Lane("task", [SHAPES["sse"]], ["admit"]))


def websocket(folder):
    """The built-in provider upgrades, gets 426, turns to HTTP and says nothing about it."""
    def upgraded(edge, lane, checks):
        upgrades = [line for line in edge.audit(lane) if line["method"] == "GET" and line["status"] == 426]
        checks.that(upgrades, "no upgrade was answered with 426")
    lane = Lane("task", [SHAPES["sse"]], [CALL, "admit"])
    return _through(folder, "websocket", lane, ran=[MARKER], provider="websocket", also=upgraded)


def zstd_body(folder):
    def compressed(edge, lane, checks):
        lists = [line["outcome"] for line in edge.audit(lane) if line["path"].endswith("/models")]
        checks.that(lists and set(lists) == {"ok"}, f"its lists of models: {lists}")
        for line in edge.sim_log(lane):
            if line["method"] != "POST":
                continue
            codings = [value for name, value in line["headers"] if name.lower() == "content-encoding"]
            checks.equal("content-encoding at the upstream", codings, ["zstd"])
            checks.equal("the model that the upstream read", line["model"], "gpt-5.5")
        for line in _requests(edge.audit(lane)):
            checks.equal("the model in the audit", line["model"], "gpt-5.5")
    lane = Lane("task", [SHAPES["sse"]], [CALL, "admit"])
    return _through(folder, "zstd body", lane, ran=[MARKER], provider="zstd", also=compressed)


def reviewer(folder):
    """A command that needs leave is put to the client's own reviewer, with a model of its own: its
    requests reach the credential of the task, of six, and so does what the task goes on with.

    The simulator writes no verdict that the reviewer could give, so the command is declined.
    """
    begun = time.monotonic()
    checks = Checks()
    lane = Lane("task", *[[ESCALATED_CALL, "admit"]] * 6, affinity=True)
    with Edge(folder, [lane]) as edge:
        with Task(folder, edge.base(lane), reviewed=True) as task:
            checks.equal("exit", task.finish(60), 0)
        asked = [line for line in edge.sim_log(lane) if line["method"] == "POST"]
        reviews = [line for line in asked if ["x-openai-subagent", "guardian"] in line["headers"]]
        own = [line for line in asked if line not in reviews]
        checks.that(reviews, "the client asked no reviewer, so nothing was tested")
        checks.equal("models of the reviews", {line["model"] for line in reviews} - {REVIEWER}, set())
        checks.equal("requests of the task itself", len(own), 2)
        checks.that(asked and own[0] is asked[0], "a review came first")
        homes = {line["credential"] for line in asked}
        checks.equal("credentials that the simulator saw", len(homes), 1)
        checks.that(any(f"Hello from {home}." in task.said() for home in homes), f"it said {task.said()}")
        audit = _requests(edge.audited(lane, checks))
        checks.equal("sessions in the audit", len({line["session"] for line in audit}), 1)
        checks.equal("outcomes", {line["outcome"] for line in audit}, {"ok"})
        shown = evidence(task.output(), edge, lane) if checks.faults else ""
    got = f"{len(own)} requests and {len(reviews)} reviews at one credential"
    expected = "the reviewer lands on the task's credential"
    return Result("reviewer", CLIENT, expected, checks, got, shown, time.monotonic() - begun)


def all_refuse(folder, shape):
    """Nobody has a seat: the client comes back as `Retry-After` says, and is served once there is one."""
    asked = 4
    begun = time.monotonic()
    checks = Checks()
    lane = Lane("task", *[[SHAPES[shape]]] * 5)
    with Edge(folder, [lane]) as edge, Task(folder, edge.base(lane)) as task:
        try:
            wait_for(lambda: len(_requests(edge.audit(lane))) >= asked or not task.running(), 40, "its requests")
            checks.that(task.running(), "it gave up while all refused")
            refused = _requests(edge.audit(lane))
            for line in refused:
                checks.that(line["outcome"] != "ok", "a refused request counts as served")
            edge.audited(lane, checks)
            gaps = [_seconds(b) - _seconds(a) for a, b in zip(refused, refused[1:])]
            # 1 s is the least `Retry-After` here; without one the client's first waits are 0.2 and 0.4 s.
            checks.that(all(gap > 0.9 for gap in gaps), f"it did not wait for Retry-After: {gaps}")
            edge.set_steps(Lane("task", *[[CALL, "admit"]] * 5))
            code = task.finish(40)
            checks.equal("exit", code, 0)
            checks.equal("commands run", task.ran(), [MARKER])
            checks.that(any(lane.text(letter) in task.said() for letter in "abcde"), f"it said {task.said()}")
        except TimeoutError as late:
            checks.that(False, str(late))
        checks.that(not CAPACITY.search(task.output()), "it told the user that the model is at capacity")
        waits = ", ".join(f"{gap:.1f}" for gap in gaps) if not checks.faults else ""
        return Result(
            f"all refuse: {shape}" if shape != "rate_limit" else "all limited", CLIENT,
            "goes on asking, then done, exit 0", checks,
            f"{asked} refusals {waits} s apart, then done",
            evidence(task.output(), edge, lane) if checks.faults else "", time.monotonic() - begun,
        )


def control_without_berth(folder):
    """These tests can fail: the client alone gives up at the first refusal."""
    return _gives_up(folder, "control: no berth", None)


def control_mode_off(folder):
    """berth as a plain proxy changes nothing of that."""
    return _gives_up(folder, "control: mode off", {"mode": "off"})


def _gives_up(folder, name, admission):
    begun = time.monotonic()
    checks = Checks()
    lane = Lane("task", [SHAPES["sse"]])
    with Edge(folder, [lane], admission=admission) as edge:
        base = edge.base(lane)
        if admission is None:
            # The key tells the simulator which credential this is.
            base = edge.sim_base()
        with Task(folder, base, key="sk-task-a") as task:
            code = task.finish(30)
        checks.equal("exit", code, 1)
        checks.that("Selected model is at capacity" in task.output(), "it does not say 'Selected model is at capacity'")
        checks.equal("requests at the upstream", len(edge.sim_log(lane)), 1)
        shown = evidence(task.output(), edge, lane) if checks.faults else ""
    return Result(
        name, CLIENT, "gives up: model is at capacity", checks,
        "exit 1, 'Selected model is at capacity', 1 request", shown, time.monotonic() - begun,
    )


def _through(folder, name, lane, ran=(), provider="http", also=None):
    """The first credential refuses once at least, the second answers, and the client never knows."""
    begun = time.monotonic()
    checks = Checks()
    with Edge(folder, [lane]) as edge:
        with Task(folder, edge.base(lane), provider) as task:
            checks.equal("exit", task.finish(40), 0)
        checks.equal("commands run", task.ran(), list(ran))
        checks.equal("said", task.said(), [lane.text("b")])
        checks.equal("complaints", task.complaints(), [])
        checks.that(not CAPACITY.search(task.output()), "it told the user that the model is at capacity")
        audit = _requests(edge.audited(lane, checks))
        attempts = [attempt for line in audit for attempt in line["attempts"]]
        checks.equal("requests of the client", len(audit), 1 + len(ran))
        for line in audit:
            checks.equal("outcome", line["outcome"], "ok")
        refused = [a for a in attempts if a["verdict"] != "admitted"]
        checks.that(refused, "nothing was refused, so nothing was tested")
        checks.that(all(a["credential"] == "task-a" for a in refused), "the admitting credential refused")
        if also:
            also(edge, lane, checks)
        shown = evidence(task.output(), edge, lane) if checks.faults else ""
    got = f"{len(audit)} requests, {len(attempts)} attempts, {_verdicts(refused)}"
    return Result(name, CLIENT, UNHEARD, checks, got, shown, time.monotonic() - begun)


def _requests(audit):
    return [line for line in audit if line["method"] == "POST"]


def _verdicts(attempts):
    return ", ".join(sorted({attempt["verdict"] for attempt in attempts}))


def _seconds(line):
    return datetime.datetime.fromisoformat(line["ts"].replace("Z", "+00:00")).timestamp()
