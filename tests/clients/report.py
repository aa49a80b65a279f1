"""What was expected, what came, and the evidence of a failure."""

import json


class Checks:
    """The faults of one scenario; none means passed."""

    def __init__(self):
        self.faults = []

    def that(self, true, fault):
        if not true:
            self.faults.append(fault)

    def equal(self, what, got, expected):
        self.that(got == expected, f"{what}: {got!r}, expected {expected!r}")


class Result:
    def __init__(self, scenario, client, expected, checks, got, evidence, seconds):
        self.scenario, self.client, self.expected = scenario, client, expected
        self.passed = not checks.faults
        self.got = got if self.passed else "; ".join(checks.faults)
        self.evidence, self.seconds = evidence, seconds


def evidence(client_output, edge, lane):
    """The client's output, the audit and the simulator's log of one lane, each bounded."""
    audit = "\n".join(json.dumps(line) for line in edge.audit(lane))
    log = "\n".join(json.dumps(_short(line)) for line in edge.sim_log(lane))
    parts = {"client": client_output, "audit": audit, "sim log": log}
    bounded = "".join(f"--- {name}\n{text[-6000:].rstrip()}\n" for name, text in parts.items())
    return bounded + edge.output()


def table(results):
    rows = [("scenario", "client", "expected", "got", "s")] + [
        (r.scenario, r.client, r.expected, ("ok: " if r.passed else "FAILED: ") + r.got, f"{r.seconds:.1f}")
        for r in results
    ]
    widths = [min(44, max(len(row[i]) for row in rows)) for i in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        print(" | ".join(cells + [row[4].rjust(5), row[3].replace("\n", " ")[:300]]))


def _short(line):
    """A request's log line without the headers that say nothing about it."""
    wanted = ("content-encoding", "content-length", "accept-encoding", "transfer-encoding")
    headers = [pair for pair in line["headers"] if pair[0].lower() in wanted]
    return {**line, "headers": headers}
