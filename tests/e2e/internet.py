"""A small internet: a process in a network of its own that serves packages, and an API of a model,
at addresses of the internet.

`python -m tests.e2e.internet DIRECTORY` serves `DIRECTORY/packages` by HTTP and HTTPS, and notes in
`DIRECTORY/called` each request to the model. It ends with its stdin.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PACKAGES, MODEL, HERE = "93.184.215.10", "93.184.215.20", "93.184.215.1"
"""`HERE` is the daemon's own."""
HOSTS = f"""127.0.0.1 localhost
{PACKAGES} packages.example front.example
{MODEL} model.example alias.example
93.184.215.30 api.anthropic.com
127.0.0.1 rebound.example
169.254.169.254 metadata.example
{HERE} here.example
"""


class _Packages(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


class _Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        with open(Path(sys.argv[1], "called"), "a") as file:
            print(self.path, file=file)
        usage = {"input_tokens": 1, "output_tokens": 1}
        body = json.dumps({"content": [{"type": "text", "text": "hello"}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    directory = Path(sys.argv[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "certificate.pem")
    packages = partial(_Packages, directory=str(directory / "packages"))
    for address in (PACKAGES, MODEL):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address, handler in ((PACKAGES, packages), (MODEL, _Model)):
        for port in (80, 443):
            server = ThreadingHTTPServer((address, port), handler)
            if port == 443:
                server.socket = context.wrap_socket(
                    server.socket, server_side=True, do_handshake_on_connect=False
                )
            threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
