"""What the benchmarks share: the servers they start, the clients they are, and how a pair is compared.

A figure is always a ratio of two set-ups that are asked in turn within the same minute, so that whatever else the machine
does hits both; the median over the pairs is what counts. Import this from a `bench-NAME` beside it.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(
    os.environ.get("MESH_NODE_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "mesh-node"
)
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
NODE = TARGET / "release" / "mesh-node"
MODEL = pathlib.Path(os.environ.get("MESH_TEST_MODELS") or CACHE / "models") / "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "smollm2-135m-instruct.q4_1"
WORDS = (
    "sea wind star river stone light garden window letter music winter morning village bridge forest silver story "
    "paper mountain harbour engine number signal copper market season valley island thread mirror"
).split()


class Told(typing.NamedTuple):
    """One answer: seconds from the request to its first and last token, its token counts, its text, and how many drafts
    came true or did not."""

    first: float
    last: float
    prompt_tokens: int
    tokens: int
    cached_tokens: int
    text: str
    accepted: int = 0
    rejected: int = 0

    @property
    def speed(self):
        """Tokens a second within the stream."""
        return (self.tokens - 1) / (self.last - self.first)


class Server:
    """A process that is ended with the block; `url` once it answers."""

    def __init__(self, folder, name, command, env=None):
        self.name, self.path = name, folder / f"{name}.log"
        with self.path.open("w") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdout=subprocess.PIPE, stderr=log, text=True,
                env=None if env is None else {**os.environ, **env})
        self.url = None

    def ready(self, what):
        """The fields of the node's line `ready WHAT`."""
        for line in self.process.stdout:
            if line.startswith(f"ready {what}"):
                return dict(word.split("=", 1) for word in line.split() if "=" in word)
        sys.exit(f"{self.name} ended before it was ready:\n{self.path.read_text()}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Bench:
    """A scratch folder, the servers of a benchmark, and what it has found."""

    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="mesh-bench-")
        self.folder = pathlib.Path(self.scratch.name)
        self.servers, self.rows = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.scratch.cleanup()

    def stop(self):
        """Ends all servers, the last one first."""
        while self.servers:
            self.servers.pop().stop()

    def start(self, name, command, env=None):
        server = Server(self.folder, name, command, env)
        self.servers.append(server)
        return server

    def node(self, name, *args, prefix=(), listen="127.0.0.1:0"):
        """`mesh-node ARGS`, optionally behind a command that puts it somewhere else."""
        return self.start(
            name, [*prefix, NODE, *args, "--name", name, "--listen", listen, "--data-dir", self.folder / name])

    def up(self, name, *args, prefix=(), listen="127.0.0.1:0"):
        """A node that starts a mesh with the model and has a gateway."""
        return self.node(name, "up", "--model", MODEL, "--gateway", "127.0.0.1:0", *args, prefix=prefix, listen=listen)

    def served(self, node):
        """Waits until a node started by `up` serves its model; its gateway's URL."""
        node.url = node.ready("gateway")["url"]
        node.ready("model")
        return node.url

    def llama_server(self, programs, *args):
        """llama.cpp's own server, once it answers."""
        port = free_port()
        server = self.start("llama-server", [
            programs / "llama-server", "-m", MODEL, "--host", "127.0.0.1", "--port", port, "--no-webui", *args])
        server.url = f"http://127.0.0.1:{port}/v1"
        wait_for(lambda: answers(port, "/health"), "llama-server")
        return server

    def compare(self, row, ours, theirs, goal, *, pairs=7, at_most=False):
        """Takes `ours()` and `theirs()` in turn, prints each pair, and keeps the median of ours/theirs."""
        print(f"\n{row}\npair       ours     theirs      ratio", flush=True)
        ratios = []
        for pair in range(pairs):
            measures = (ours, theirs) if pair % 2 == 0 else (theirs, ours)
            values = {measure: measure() for measure in measures}
            ratios.append(values[ours] / values[theirs])
            print(f"{pair + 1:4} {values[ours]:10.2f} {values[theirs]:10.2f} {ratios[-1]:10.3f}", flush=True)
        self.keep(row, statistics.median(ratios), goal, at_most)

    def keep(self, row, value, goal, at_most=False):
        """Adds a row to the table that `report` prints."""
        self.rows.append((row, value, goal, value <= goal if at_most else value >= goal, at_most))

    def report(self):
        """Prints the table; the exit status says whether every goal was reached."""
        width = max(len(row) for row, *_ in self.rows)
        print(f"\n{'figure':{width}}   median        goal")
        for row, value, goal, reached, at_most in self.rows:
            print(f"{row:{width}} {value:8.3f}   {'≤' if at_most else '≥'} {goal:6.2f}   {'' if reached else 'MISSED'}")
        return 0 if all(reached for *_, reached, _ in self.rows) else 1


def build(*more):
    """The node, for release, what else cargo is told to build, and the model."""
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "mesh-node", *more], cwd=ROOT, check=True)
    subprocess.run([ROOT / "scripts" / "fetch-models", "--only", "smollm2"], check=True)


def upstream(*targets):
    """The folder of llama.cpp's own programs, built first where they are missing."""
    built = subprocess.run([ROOT / "scripts" / "upstream", *targets], check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(built.stdout.strip())


def text(words):
    """Words that no earlier prompt began with, so that no server finds them in a cache."""
    return " ".join(random.choice(WORDS) for _ in range(words))


def ask(url, messages, tokens, **more):
    """One greedy stream of exactly `tokens` tokens."""
    address, path = url.removeprefix("http://").split("/", 1)
    body = {
        "model": NAME, "messages": messages, "stream": True, "stream_options": {"include_usage": True},
        "temperature": 0, "ignore_eos": True, "max_tokens": tokens, **more,
    }
    connection = http.client.HTTPConnection(address, timeout=600)
    begun = time.perf_counter()
    connection.request("POST", f"/{path}/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"{response.status}: {response.read().decode()}")
    first = last = usage = None
    pieces = []
    for line in response:
        if line.startswith(b'data: {"error"'):
            sys.exit(line.decode())
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        if piece := "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", [])):
            last = time.perf_counter() - begun
            first = first or last
            pieces.append(piece)
    connection.close()
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    ahead = usage.get("completion_tokens_details") or {}
    return Told(first, last, usage["prompt_tokens"], usage["completion_tokens"], cached, "".join(pieces),
                ahead.get("accepted_prediction_tokens", 0), ahead.get("rejected_prediction_tokens", 0))


def question(words=40):
    """A conversation of one message that no server has seen."""
    return [{"role": "user", "content": f"Write a long story about these: {text(words)}."}]


def together(url, clients, tokens, words=40):
    """`clients` streams at once: (tokens a second in all, median seconds to the first token)."""
    questions = [question(words) for _ in range(clients)]
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        begun = time.perf_counter()
        answers = list(pool.map(lambda messages: ask(url, messages, tokens), questions))
        took = time.perf_counter() - begun
    return sum(told.tokens for told in answers) / took, statistics.median(told.first for told in answers)


def prefill_speed(url, words):
    """Prompt tokens a second up to the first token of a prompt of about `words` tokens."""
    told = ask(url, question(words), 1)
    return told.prompt_tokens / told.first


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port, path):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False


def wait_for(condition, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not answer within {seconds} s")
        time.sleep(0.1)
