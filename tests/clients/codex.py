"""The Codex CLI: one task, and what became of it."""

import base64
import glob
import json
import os
import subprocess
import threading
import time

from edge import end, start

PROMPT = "Say hello."
MARKER = "berth-marker-42"
# The marker is computed by the shell, so it appears only if the command ran.
REVIEWER = "codex-auto-review"
# What a user may not do without asking: with the flag below, the client asks a reviewer of its own.
ESCALATED = json.dumps({
    "cmd": "echo berth-marker-$((40+2))", "sandbox_permissions": "require_escalated", "justification": "Is it allowed?",
})
ESCALATED_CALL = {"admit": {"call": {"name": "exec_command", "arguments": ESCALATED}}}
CALL = {"admit": {"call": {"name": "exec_command", "arguments": json.dumps({"cmd": "echo berth-marker-$((40+2))"})}}}

COMMON = """\
model = "gpt-5.5"
approval_policy = "{policy}"
check_for_update_on_startup = false
web_search = "disabled"
chatgpt_base_url = "{base}"
{top}
[analytics]
enabled = false
[feedback]
enabled = false
[otel]
exporter = "none"
trace_exporter = "none"
metrics_exporter = "none"
[history]
persistence = "none"
[features]
apps = false
plugins = false
{provider}"""

CUSTOM = """
[model_providers.edge]
name = "{name}"
base_url = "{base}"
wire_api = "responses"
{login}
"""

# The client's own list of models, with a reviewer that has a model of its own, as with a subscription.
REVIEWED = """
approvals_reviewer = "auto_review"
model_catalog_json = "{catalog}"
"""

# What a user may have written, and how the client then speaks.
PROVIDERS = {
    # A provider with a key in the environment: HTTP, plain JSON bodies.
    "http": ('model_provider = "edge"', CUSTOM, {"name": "edge", "login": 'env_key = "EDGE_KEY"'}, None),
    # The built-in provider with another base URL: WebSocket first.
    "websocket": ('model_provider = "openai"\nopenai_base_url = "{base}"', "", {}, "apikey"),
    # A provider named OpenAI with a ChatGPT login: zstd bodies, the model also in a header.
    "zstd": ('model_provider = "edge"', CUSTOM, {"name": "OpenAI", "login": "requires_openai_auth = true"}, "chatgpt"),
}


def program():
    found = glob.glob(os.environ["CODEX_DIR"] + "/node_modules/@openai/codex-*/vendor/*/bin/codex")
    if len(found) != 1:
        raise RuntimeError(f"one codex binary is wanted, found {found}")
    return found[0]


class Task:
    """`codex exec`, from its start to its end. `reviewed`: what needs leave is put to a reviewer."""

    def __init__(self, folder, base, provider="http", key="sk-client", reviewed=False):
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        top, section, words, login = PROVIDERS[provider]
        filled = section.format(base=base, **words)
        top = top.format(base=base)
        if reviewed:
            top += REVIEWED.format(catalog=_catalog(folder))
        policy = "on-request" if reviewed else "never"
        config = COMMON.format(base=base, policy=policy, top=top, provider=filled)
        (self.home / "config.toml").write_text(config)
        if login:
            (self.home / "auth.json").write_text(json.dumps(_login(login)))
        trap = "http://127.0.0.1:9"  # nobody listens: what is not for loopback goes nowhere
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "CODEX_HOME": str(self.home),
            "EDGE_KEY": key, "TERM": "dumb", "LANG": "C.UTF-8",
            "HTTP_PROXY": trap, "HTTPS_PROXY": trap, "ALL_PROXY": trap, "NO_PROXY": "127.0.0.1,localhost",
        }
        # The only commands are this test's own `echo`, and a container may allow no sandbox.
        command = [
            program(), "exec", "--json", "--skip-git-repo-check", "--color", "never",
            "--approve-for-me" if reviewed else "--dangerously-bypass-approvals-and-sandbox",
            "-C", str(self.work), PROMPT,
        ]
        self.begun = time.monotonic()
        self.lines, self.errors = [], []
        self.process = start(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.readers = [
            threading.Thread(target=_drain, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for reader in self.readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end(self.process)

    def finish(self, seconds):
        """The exit code, or None where the time is up."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(self.process)
            for reader in self.readers:
                reader.join(2)
            self.seconds = time.monotonic() - self.begun
        return self.process.returncode

    def running(self):
        return self.process.poll() is None

    def output(self):
        return "".join(self.lines) + "".join(self.errors)

    def events(self):
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def items(self, kind):
        done = [event["item"] for event in self.events() if event.get("type") == "item.completed"]
        return [item for item in done if item.get("type") == kind]

    def said(self):
        return [item["text"] for item in self.items("agent_message")]

    def ran(self):
        return [item["aggregated_output"].strip() for item in self.items("command_execution")]

    def complaints(self):
        """Whatever the client told its user about trouble."""
        events = [event for event in self.events() if event.get("type") in ("error", "turn.failed")]
        return [json.dumps(item) for item in events + self.items("error")]


def _catalog(folder):
    """A file with the client's own models, of which ours sends its reviews to `REVIEWER`."""
    empty = folder / "empty"
    empty.mkdir()
    command = [program(), "debug", "models", "--bundled"]
    told = subprocess.run(
        command, env={"CODEX_HOME": str(empty), "HOME": str(empty)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=True,
    )
    models = json.loads(told.stdout)
    ours = [model for model in models["models"] if model["slug"] == "gpt-5.5"]
    if len(ours) != 1 or not any(model["slug"] == REVIEWER for model in models["models"]):
        raise RuntimeError(f"the client knows no gpt-5.5 or no {REVIEWER}")
    ours[0]["auto_review_model_override"] = REVIEWER
    path = folder / "models.json"
    path.write_text(json.dumps(models))
    return path


def _drain(pipe, lines):
    for line in pipe:
        lines.append(line.decode(errors="replace"))


def _login(kind):
    """Synthetic credentials; they mean nothing outside these tests."""
    if kind == "apikey":
        return {"auth_mode": "apikey", "OPENAI_API_KEY": "sk-client"}
    account = {
        "chatgpt_plan_type": "pro", "chatgpt_account_id": "acct-test",
        "chatgpt_user_id": "user-test", "user_id": "user-test",
    }
    claims = {
        "email": "test@example.invalid", "exp": int(time.time()) + 86400 * 30,
        "https://api.openai.com/auth": account,
    }
    token = ".".join([_part({"alg": "none", "typ": "JWT"}), _part(claims), "c2ln"])
    tokens = {"id_token": token, "access_token": token, "refresh_token": "rt-test", "account_id": "acct-test"}
    refreshed = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    return {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": refreshed}


def _part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
