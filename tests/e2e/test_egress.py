"""Isolated runs with a way out: real programs install and clone through the gateway, and reach no
model but by its own address.

The daemon has a network of its own, which leads to a small internet of the test (`internet`) at
addresses of the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Event, Isolation, RunInfo
from tests.conftest import Start
from tests.harness import Daemon, ended, running, spawn, started, stopped, wait_until
from tests.users import needs_root

from .internet import HERE, HOSTS, MODEL, PACKAGES

pytestmark = pytest.mark.needs("bwrap")

CONFIG = """
[gateway.upstreams.anthropic]
url = "http://model.example"
api = "anthropic"
"""
IN_NETWORK_OF = ["nsenter", "--net", "--target"]
IN_OWN_NETWORK = 'mount --bind "$1" /etc/hosts && ip link set lo up && shift && exec "$@"'


@dataclass
class World:
    """A daemon, and the internet that it reaches."""

    daemon: Daemon
    client: Client
    directory: Path
    work: Path

    def run(
        self, *argv: str, egress: str = "*", env: tuple[str, ...] = (), **options: Any
    ) -> RunInfo:
        """Return an isolated run once it has ended."""
        own = {
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "HOME": str(self.directory / "home"),
            "PIP_CERT": "ca.pem",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "GIT_SSL_CAINFO": "ca.pem",
            "NODE_EXTRA_CA_CERTS": "ca.pem",
            "npm_config_cache": str(self.work / "npm"),
        }
        given = [
            *(f"{name}={value}".encode() for name, value in own.items()),
            *map(str.encode, env),
        ]
        isolation = Isolation(network=False, egress=egress.split(",") if egress else [])
        run = started(
            self.client,
            list(argv),
            cwd=os.fsencode(self.work),
            env=given,
            isolation=isolation,
            gateway=True,
            **options,
        )
        return ended(self.client, run.id)

    def said(self, run: RunInfo) -> str:
        return self.daemon.output(run.id) + self.daemon.errors(run.id)

    def attempts(self, *tried: str, **options: Any) -> dict[str, str]:
        """Return how each of these went in a run."""
        (self.work / "attempts.py").write_text(ATTEMPTS)
        run = self.run(sys.executable, "attempts.py", *tried, **options)
        assert run.exit_code == 0, self.said(run)
        found: dict[str, str] = json.loads(self.said(run))
        return found

    def called(self) -> list[str]:
        """Return the requests that have reached the model."""
        path = self.directory / "called"
        return path.read_text().splitlines() if path.exists() else []

    def refused(self) -> list[Event]:
        return self.client.call(
            m.Events(id=self.client.next_id(), types=["egress_refused"]), m.EventPage
        ).events


ATTEMPTS = """
import base64, json, os, socket, ssl, sys, urllib.parse, urllib.request
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
login = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()

def tunnel(target):
    stream = socket.create_connection((proxy.hostname, proxy.port))
    asked = f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n"
    stream.sendall(f"{asked}Proxy-Authorization: Basic {login}\\r\\n\\r\\n".encode())
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += stream.recv(1) or b"\\r\\n\\r\\n"
    return stream, head.split(b"\\r\\n")[0].decode()

def tls(target):
    "TARGET/NAME: a handshake with this name through a tunnel to the target"
    target, _, name = target.partition("/")
    stream, head = tunnel(target)
    context = ssl._create_unverified_context()
    with context.wrap_socket(stream, server_hostname=name or None) as secure:
        secure.sendall(b"POST /v1/messages HTTP/1.1\\r\\nHost: model.example\\r\\n"
            b"Content-Length: 2\\r\\n\\r\\n{}")
        return secure.recv(100).decode().split("\\r\\n")[0]

def bytes_to(target):
    stream, head = tunnel(target)
    stream.sendall(b"POST /v1/messages HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    stream.settimeout(10)
    return stream.recv(100).decode(errors="replace").split("\\r\\n")[0] or "closed"

def url(target):
    request = urllib.request.Request(target, data=b"{}", method="POST")
    return str(urllib.request.urlopen(request).status)

def call(target):
    body = json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": []}).encode()
    request = urllib.request.Request(target, data=body, method="POST")
    return urllib.request.urlopen(request).read().decode()

def direct(target):
    host, _, port = target.rpartition(":")
    socket.create_connection((host, int(port)), timeout=5)
    return "connected"

def lookup(target):
    "A question of DNS, which could carry data out"
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (target, 53))
    return "sent"

HOW = {"tunnel": lambda target: tunnel(target)[1], "tls": tls, "bytes": bytes_to, "url": url}
HOW |= {"call": call, "direct": direct, "lookup": lookup}
found = {}
for tried in sys.argv[1:]:
    how, _, target = tried.partition(" ")
    try:
        found[tried] = HOW[how](target.replace("GATEWAY", os.environ["ANTHROPIC_BASE_URL"]))
    except Exception as error:
        found[tried] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def _wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("thing.py", "ANSWER = 42\n")
        about = "thing-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        wheel.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{about}/RECORD", "")


def _packages(place: Path) -> None:
    """Write an index for pip, a registry for npm, and a repository."""
    (place / "simple" / "thing").mkdir(parents=True)
    _wheel(place / "simple" / "thing" / "thing-1.0-py3-none-any.whl")
    (place / "simple" / "thing" / "index.html").write_text(
        '<a href="thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>'
    )
    about = {
        "name": "thing",
        "version": "1.0.0",
        "dist": {"tarball": "https://packages.example/npm/thing-1.0.0.tgz"},
    }
    (place / "npm").mkdir()
    (place / "package.json").write_text(json.dumps({"name": "thing", "version": "1.0.0"}))
    with tarfile.open(place / "npm" / "thing-1.0.0.tgz", "w:gz") as archive:
        archive.add(place / "package.json", "package/package.json")
    (place / "npm" / "thing").write_text(
        json.dumps(
            {"name": "thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": about}}
        )
    )
    source = place.parent / "source"
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "-C", str(source)]
    subprocess.run(["git", "init", "-q", "-b", "main", str(source)], check=True)
    (source / "file").write_text("cloned\n")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    subprocess.run(
        ["git", "clone", "-q", "--bare", str(source), str(place / "repository.git")], check=True
    )
    subprocess.run(["git", "-C", str(place / "repository.git"), "update-server-info"], check=True)


@contextmanager
def internet(directory: Path) -> Iterator[int]:
    """Serve the small internet. Yield the pid of its process."""
    argv = ["unshare", "--net", sys.executable, "-m", "tests.e2e.internet", str(directory)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


def _connect(daemon: int, internet: int) -> None:
    """Lay a cable from the network of one process to that of another."""
    near, far = f"sfad{daemon % 10**8}a", f"sfad{daemon % 10**8}b"
    for words in (
        [
            *IN_NETWORK_OF,
            str(daemon),
            "ip",
            "link",
            "add",
            near,
            "type",
            "veth",
            "peer",
            "name",
            far,
        ],
        [*IN_NETWORK_OF, str(daemon), "ip", "link", "set", far, "netns", str(internet)],
        [*IN_NETWORK_OF, str(daemon), "ip", "address", "add", f"{HERE}/24", "dev", near],
        [*IN_NETWORK_OF, str(daemon), "ip", "link", "set", near, "up"],
        [*IN_NETWORK_OF, str(internet), "ip", "link", "set", far, "up"],
        [*IN_NETWORK_OF, str(internet), "ip", "route", "add", HERE, "dev", far],
    ):
        subprocess.run(words, check=True)


@pytest.fixture
def world(tmp_path: Path, containment: str) -> Iterator[World]:
    """Start a daemon with each containment."""
    authority = trustme.CA()
    certificate = authority.issue_cert(
        "packages.example", "front.example", "model.example", "alias.example", PACKAGES
    )
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "certificate.pem")
    (tmp_path / "hosts").write_text(HOSTS)
    (tmp_path / "daemon").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    authority.cert_pem.write_to_path(work / "ca.pem")
    _packages(tmp_path / "packages")
    own = ["unshare", "--net", "--mount", "sh", "-c", IN_OWN_NETWORK, "sh", str(tmp_path / "hosts")]
    with (
        internet(tmp_path) as other,
        running(tmp_path / "daemon", config=CONFIG, mode=containment, wrap=own) as daemon,
    ):
        _connect(daemon.process.pid, other)
        with daemon.client() as client:
            yield World(daemon, client, tmp_path, work)


INSTALLS = {
    "pip": (
        "python -m pip install -q --target there --index-url https://packages.example/simple thing "
        "&& cat there/thing.py"
    ),
    "pip by http": "python -m pip install -q --target there --index-url http://packages.example/simple"
    " --trusted-host packages.example thing && cat there/thing.py",
    "npm": "npm install --no-audit --no-fund --prefix there --registry "
    "https://packages.example/npm thing && cat there/node_modules/thing/package.json",
    "git": "git clone -q https://packages.example/repository.git there && cat there/file",
    "git by http": "git clone -q http://packages.example/repository.git there && cat there/file",
    "curl": (
        "curl -sS --cacert "
        "ca.pem https://packages.example/package.json http://packages.example/package.json"
    ),
}


@needs_root
def test_programs_install_and_clone(world: World) -> None:
    """With `*`, and with the host alone; a person's proxy, which the sandbox cannot reach, is
    replaced."""
    persons = (
        "npm_config_proxy=http://127.0.0.1:9",
        "npm_config_https_proxy=http://127.0.0.1:9",
        "NO_PROXY=packages.example",
    )
    for program, script in INSTALLS.items():
        if shutil.which(program.split()[0]) is None:
            continue
        for egress in ("*", "packages.example"):
            shutil.rmtree(world.work / "there", ignore_errors=True)
            run = world.run("sh", "-c", script, egress=egress, env=persons)
            said = world.said(run)
            assert run.exit_code == 0, (program, said)
            assert "42" in said or "thing" in said or "cloned" in said, (program, said)
    assert not world.refused()
    run = world.run(
        "curl",
        "-sS",
        "--cacert",
        "ca.pem",
        "https://packages.example/package.json",
        egress="other.example",
    )
    assert "403" in world.said(run)
    wait_until(lambda: bool(world.refused()), "it is recorded")
    (event,) = world.refused()
    assert (event.run_id, event.host, event.port, event.severity) == (
        run.id,
        "packages.example",
        443,
        "medium",
    )
    assert "not in the run's --egress" in event.message


@needs_root
def test_a_model_is_reached_by_the_gateway_alone(world: World) -> None:
    refused = [
        "tunnel model.example:443",  # by name, in each spelling
        "tunnel model.example:80",
        "tunnel MODEL.example.:80",
        "tunnel alias.example:80",  # by DNS: another name of its address
        f"tunnel {MODEL}:80",  # by address
        f"tunnel [::ffff:{MODEL}]:80",
        f"tunnel [64:ff9b::{MODEL}]:443",
        "tunnel api.anthropic.com:443",
        "tunnel api.openai.com:443",
        "url http://model.example/v1/messages",
        "url http://alias.example/v1/messages",
        "tunnel rebound.example:80",  # addresses that are not of the internet
        "tunnel metadata.example:80",
        "tunnel here.example:80",
        "tunnel 169.254.169.254:80",
        "tunnel localhost:80",
    ]
    server = [
        *IN_NETWORK_OF,
        str(world.daemon.process.pid),
        sys.executable,
        "-m",
        "http.server",
        "--bind",
        HERE,
        "80",
    ]
    with subprocess.Popen(
        server, cwd=world.work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        here = "tunnel here.example:80"
        wait_until(
            lambda: " 200 " in world.attempts(here, egress="here.example")[here], "it serves"
        )
        found = world.attempts(*refused)
        process.terminate()
    assert [tried for tried in refused if "403" not in found[tried]] == [], found
    closed = [
        # a tunnel to one site, and TLS with the name of another
        "tls packages.example:443/model.example",
        "tls packages.example:443/front.example",
        "tls packages.example:443/",
        "bytes packages.example:443",
        "direct model.example:80",  # around the proxy
        f"direct {MODEL}:80",
        f"direct {PACKAGES}:80",
        "direct 127.0.0.1:80",
        f"lookup {MODEL}",
    ]
    found = world.attempts(*closed)
    for tried in closed[:4]:
        assert "NRECOGNIZED_NAME" in found[tried].upper() or not found[tried].startswith("HTTP"), (
            found
        )
    assert all("Error" in found[tried] for tried in closed[4:]), found
    whys = [
        "TLS is meant for 'model.example'",
        "TLS is meant for 'front.example'",
        "tells no name",
        "is not TLS",
    ]
    wait_until(
        lambda: all(any(why in event.message for event in world.refused()) for why in whys),
        "they are told",
    )
    assert world.called() == []
    allowed = ["call GATEWAY/v1/messages", "tls packages.example:443/packages.example"]
    found = world.attempts(*allowed)
    assert "hello" in found[allowed[0]], found
    assert found[allowed[1]].startswith("HTTP/1.1 501"), found
    assert world.called() == ["/v1/messages"]


@needs_root
def test_what_a_run_starts_reaches_no_more(world: World) -> None:
    """A child has what its parent has, or a part of it; a run without a sandbox, or in one with the
    network, has no proxy."""
    script = (
        "import subprocess, sys, os, json\nfor words in json.loads(sys.argv[1]):\n "
        "   done = subprocess.run([sys.executable, '-m', 'sfactl', 'run', '-q', *words], "
        "capture_output=True, text=True)\n    print(done.returncode, done.stdout + done.stderr)\n"
    )
    curl = ["--", "curl", "-sS", "--cacert", "ca.pem", "https://packages.example/package.json"]
    for words, expected in (
        (curl, '0 {"name": "thing"'),
        (["--isolate=net", "--egress", "packages.example", *curl], '0 {"name": "thing"'),
        (["--egress", "other.example", *curl], "2 "),
        (["--egress", "*", *curl], "at most its --egress"),
        (["--isolate=net", "--egress", "front.example", *curl], "403"),
    ):
        run = world.run(
            sys.executable,
            "-c",
            script,
            json.dumps([words]),
            egress="packages.example,front.example",
        )
        assert expected in world.said(run), (words, world.said(run))
    env = [b"PATH=/usr/bin:/bin"]
    for isolation in (None, Isolation()):
        argv = [
            "sh",
            "-c",
            (
                'echo "proxy $HTTPS_PROXY"; exec curl -sS -x "${ANTHROPIC_BASE_URL%/anthropic}" '
                "https://packages.example/"
            ),
        ]
        run = ended(
            world.client,
            started(world.client, argv, cwd=b"/", env=env, isolation=isolation, gateway=True).id,
        )
        assert "proxy \n" in world.said(run)
        # with tags, the run has to name itself
        assert "response 403" in world.said(run) or "response 407" in world.said(run)


def test_what_is_refused_at_the_start(share: Start, tmp_path: Path) -> None:
    with share().client() as client:
        for isolation, gateway, why in (
            (Isolation(egress=["a.example"]), True, "add --isolate=net"),
            (Isolation(network=False, egress=["a.example"]), False, "start it with --gateway"),
            (Isolation(network=False, egress=["http://a.example"]), True, "is not HOST, HOST:PORT"),
            (
                Isolation(network=False, egress=["*", "API.OpenAI.com"]),
                True,
                "is the API of a model",
            ),
            (
                Isolation(network=False, egress=["a" * 100 + ".example"] * 200),
                True,
                "characters of --egress",
            ),
        ):
            reply = spawn(
                client, ["true"], cwd=os.fsencode(tmp_path), isolation=isolation, gateway=gateway
            )
            assert isinstance(reply, m.Error)
            assert why in reply.message


def test_the_config_adds_hosts(start: Start, tmp_path: Path) -> None:
    """`info` shows them. Refusals are events, at most ten a minute for a run."""
    daemon = start(config="[isolation]\negress = ['b.example', '*.c.example:8443']")
    script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13; do curl -s http://d.example/; done; sleep 60"
    with daemon.client() as client:
        isolation = Isolation(network=False, egress=["a.example"])
        run = started(
            client,
            ["sh", "-c", script],
            cwd=os.fsencode(tmp_path),
            isolation=isolation,
            gateway=True,
        )
        assert (run.isolation, run.egress) == (
            "net",
            ("a.example", "b.example", "*.c.example:8443"),
        )
        out = daemon.state_dir / "output" / f"{run.id}.out"
        wait_until(
            lambda: out.read_text().count("sfad refuses d.example:80") == 13, "all were refused"
        )
        page = m.Events(id=client.next_id(), types=["egress_refused"])
        wait_until(lambda: len(client.call(page, m.EventPage).events) >= 10, "they are recorded")
        assert len(client.call(page, m.EventPage).events) == 10
        stopped(client, run.id, grace=0)
        kept = client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run
        assert (kept.status.terminal, kept.isolation, kept.egress) == (
            True,
            run.isolation,
            run.egress,
        )


def test_a_service_of_this_machine(share: Start, tmp_path: Path) -> None:
    """It is reached by its name alone, where that is listed with its port."""
    (tmp_path / "file").write_text("served\n")
    argv = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().partition(" port ")[2].split()[0]
        daemon = share()
        with daemon.client() as client:
            for listed, expected in ((f"localhost:{port}", "served"), ("localhost", "not port")):
                isolation = Isolation(network=False, egress=[listed])
                words = ["curl", "-s", f"http://localhost:{port}/file"]
                run = ended(
                    client,
                    started(
                        client, words, cwd=os.fsencode(tmp_path), isolation=isolation, gateway=True
                    ).id,
                )
                said = daemon.output(run.id)
                assert expected in said, said
        server.terminate()
