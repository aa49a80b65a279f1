"""One `berth run` in front of one `berth sim`, and what both of them saw.

A lane is a route with credentials of its own. Scores, hold-outs and budgets belong to credentials,
models and routes, so lanes do not touch each other and one pair of processes serves many scenarios.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import urllib.request

BERTH = os.environ["BERTH_BIN"]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
MAX_ATTEMPTS = 3
STARTED = set()  # processes to end when the run is interrupted
STARTING = threading.Lock()  # taken for good by the interruption: nothing starts after it
_PORTS = iter(range(21000, 32000))  # below the range that the kernel hands to connections
_PORTS_LOCK = threading.Lock()


def free_port():
    with _PORTS_LOCK:
        for port in _PORTS:
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                    return port
                except OSError:
                    pass
    raise RuntimeError("no free port")


def start(command, **how):
    with STARTING:
        process = subprocess.Popen(command, start_new_session=True, **how)
        STARTED.add(process)
    return process


def end(process, patience=3):
    """Ends a process that `start` made, and the children in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None or number == signal.SIGKILL:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                pass
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            pass
    STARTED.discard(process)


def wait_for(condition, seconds, what):
    """The condition's first true value; every wait of these tests has an end."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.02)
    return value


class Lane:
    """A route whose credentials take these steps: `NAME-a` the first list, `NAME-b` the second, ..."""

    def __init__(self, name, *tracks, affinity=False):
        # Without it the order listed decides, not where a session lives.
        self.affinity = affinity
        self.name = name.replace("_", "-").replace(" ", "-")
        self.credentials = {f"{self.name}-{letter}": steps for letter, steps in zip("abcdefgh", tracks)}

    def text(self, letter):
        """What the simulator says with this credential."""
        return f"Hello from {self.name}-{letter}."


class Edge:
    def __init__(self, folder, lanes, dialect="openai", admission=None):
        self.folder = pathlib.Path(folder)
        self.lanes = {lane.name: lane for lane in lanes}
        self.dialect = dialect
        self.admission = admission or {}
        self.port, self.sim_port = free_port(), free_port()
        self.processes = []

    def __enter__(self):
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            end(process)

    def base(self, lane):
        return f"http://127.0.0.1:{self.port}/{lane.name}/v1"

    def sim_base(self):
        return f"http://127.0.0.1:{self.sim_port}/v1"

    def audit(self, lane):
        path = self.folder / "audit.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        told = [json.loads(line) for line in lines]
        return [line for line in told if line["route"] == f"/{lane.name}/v1"]

    def audited(self, lane, checks):
        """The lane's audit, which must tell of every request that the simulator saw.

        A line is written after the last byte of its answer, so a client can be done before.
        """
        asked = self._asked(lane)
        counted = lambda: sum(len(line["attempts"]) for line in self.audit(lane))
        try:
            wait_for(lambda: counted() == asked, 3, "the audit")
        except TimeoutError:
            checks.equal("attempts in the audit", counted(), asked)
        audit = self.audit(lane)
        for line in audit:
            tried = len(line["attempts"])
            checks.that(tried <= MAX_ATTEMPTS, f"{tried} attempts for one request, at most {MAX_ATTEMPTS} are allowed")
        return audit

    def _asked(self, lane):
        """Requests at the simulator that count as attempts.

        A kept connection that turns out dead, without a byte of an answer, is replaced once and
        counts as no attempt. What came back as garbage was not dead.
        """
        used, asked = set(), 0
        for line in self.sim_log(lane):
            asked += not (line["connection"] in used and line["bytes_out"] == 0 and line["status"] is None)
            used.add(line["connection"])
        return asked

    def sim_log(self, lane):
        with DIRECT.open(f"http://127.0.0.1:{self.sim_port}/__sim/log", timeout=5) as answer:
            lines = [json.loads(line) for line in answer if line.strip()]
        return [line for line in lines if line["credential"] in lane.credentials]

    def set_steps(self, lane):
        """Puts these steps in place of the lane's; every credential starts at its first step again."""
        self.lanes[lane.name] = lane
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.sim_port}/__sim/program", data=self._program().encode(), method="POST"
        )
        DIRECT.open(request, timeout=5).close()

    def output(self):
        """What the two processes wrote."""
        return "".join(
            f"--- {name}\n{(self.folder / name).read_text(errors='replace')[-4000:]}\n"
            for name in ("berth.out", "sim.out")
            if (self.folder / name).exists()
        )

    def _begin(self):
        (self.folder / "sim.yaml").write_text(self._program())
        (self.folder / "berth.yaml").write_text(self._config())
        (self.folder / "run").mkdir()
        keys = {_variable(name): f"sk-{name}" for name in self._names()}
        listen = f"127.0.0.1:{self.sim_port}"
        for name, command in (
            ("sim.out", [BERTH, "sim", "--listen", listen, "--program", self.folder / "sim.yaml"]),
            ("berth.out", [BERTH, "run", "-c", self.folder / "berth.yaml"]),
        ):
            with open(self.folder / name, "wb") as out:
                self.processes.append(start(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **keys}
                ))
        for port in (self.sim_port, self.port):
            wait_for(lambda port=port: _listens(port), 20, self.output() + "berth or the simulator listens")

    def _names(self):
        return [name for lane in self.lanes.values() for name in lane.credentials]

    def _program(self):
        credentials = {
            f"sk-{name}": {"name": name, "steps": steps}
            for lane in self.lanes.values()
            for name, steps in lane.credentials.items()
        }
        # JSON is YAML.
        return json.dumps({"models": ["gpt-5.5"], "credentials": credentials}, indent=1)

    def _config(self):
        return json.dumps({
            "listeners": [{"address": f"127.0.0.1:{self.port}"}],
            "process": {"threads": 1, "runtime_dir": str(self.folder / "run"), "stop_timeout": "1s"},
            "admin": {"address": f"127.0.0.1:{free_port()}"},
            "upstreams": {"sim": {"base_url": self.sim_base(), "dialect": self.dialect}},
            "credentials": [
                {"id": name, "upstream": "sim", "secret": {"env": _variable(name)}} for name in self._names()
            ],
            "routes": [
                {
                    "path_prefix": f"/{lane.name}/v1",
                    "credentials": list(lane.credentials),
                    "balance": "fill_first",
                    "affinity": {"enabled": lane.affinity},
                }
                for lane in self.lanes.values()
            ],
            "admission": {
                "max_attempts": MAX_ATTEMPTS,
                "retry_after": {"min": "1s", "max": "2s"}, "wait": {"max_time": "0s"}, **self.admission,
            },
            "audit": {"path": str(self.folder / "audit.jsonl")},
        }, indent=1)


def _variable(name):
    return "KEY_" + name.upper().replace("-", "_")


def _listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
        return True
    except OSError:
        return False
