"""Runs the scenarios, a few at a time, and reports. Started by run.sh."""

import concurrent.futures
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback

import codex_scenarios
import edge
import sdk_scenarios
from report import Checks, Result, table

FOLDER = tempfile.mkdtemp(prefix="berth-clients-")
SECONDS = 480  # for everything; scenarios that did not begin by then have failed


def main(words):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: interrupted())
    if os.environ["NETWORK"] == "private":
        loopback_up()
        print("network: private, only loopback")
    else:
        print("network: SHARED (no private namespace to be had); the clients know loopback addresses only")
    wanted = [
        (client, name, run)
        for client, module in (("codex", codex_scenarios), ("sdk", sdk_scenarios))
        for name, run in module.scenarios()
        if all(word in f"{client} {name}" for word in words)
    ]
    deadline = time.monotonic() + SECONDS
    begun = time.monotonic()
    results = []
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "3"))) as pool:
        running = [pool.submit(one, client, name, run, deadline) for client, name, run in wanted]
        for done in concurrent.futures.as_completed(running):
            for result in done.result():
                results.append(result)
                if not result.passed:
                    print(f"=== FAILED: {result.scenario} ({result.client})\n{result.got}\n{result.evidence}")
    results.sort(key=lambda result: (result.client, result.scenario))
    failed = sum(not result.passed for result in results)
    versions = ("CODEX_NPM", "OPENAI_NPM", "OPENAI_PY", "ANTHROPIC_PY")
    print(" ".join(f"{name.lower()}={os.environ[name]}" for name in versions))
    table(results)
    print(f"in {time.monotonic() - begun:.0f} s")
    print(f"{len(results) - failed} passed, {failed} failed")
    # A filter that fits nothing must not look like success.
    return 1 if failed or not results else 0


def one(client, name, run, deadline):
    begun = time.monotonic()
    if begun > deadline:
        return [broken(client, name, f"not begun within {SECONDS} s", 0)]
    try:
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            results = run(pathlib.Path(folder))
            return results if isinstance(results, list) else [results]
    except Exception:
        return [broken(client, name, traceback.format_exc(), time.monotonic() - begun)]


def broken(client, name, why, seconds):
    checks = Checks()
    checks.that(False, why.strip().split("\n")[-1])
    return Result(name, client, "the scenario runs", checks, "", why, seconds)


def interrupted():
    edge.STARTING.acquire()
    for process in list(edge.STARTED):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    while os.path.exists(FOLDER):  # a scenario may be writing just now
        shutil.rmtree(FOLDER, ignore_errors=True)
    os._exit(130)


def loopback_up():
    """`ip link set lo up`, where there may be no `ip`."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, get_flags, asked))[1]
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH14x", b"lo", flags | up))


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(code)
