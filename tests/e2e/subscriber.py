"""An agent that makes calls one after the other on a subscription's token, and prints what it got.

    python subscriber.py CALLS [openai]

As real programs do, it gives up at the first answer that is an error, and prints it."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit


def main() -> None:
    calls, openai = int(sys.argv[1]), sys.argv[2:] == ["openai"]
    url = urlsplit(os.environ["OPENAI_BASE_URL" if openai else "ANTHROPIC_BASE_URL"])
    body = {"model": "gpt-5", "input": "Go on.", "max_output_tokens": 1000}
    path = f"{url.path}/responses"
    if not openai:
        body = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 1000,
            "messages": [{"role": "user", "content": "Go on."}],
        }
        path = f"{url.path}/v1/messages"
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['TOKEN']}"}
    for number in range(calls):
        assert url.hostname is not None
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        print(
            json.dumps({"call": number, "status": answer.status, "said": said.decode()}), flush=True
        )
        if answer.status != 200:
            sys.exit(1)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
