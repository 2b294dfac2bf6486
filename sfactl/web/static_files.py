"""The files of `static/`, in memory, at an address with their digest: a browser keeps them until the program has others."""

from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

TYPES = {
    "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "png": "image/png", "json": "application/manifest+json",
    "LICENSE": "text/plain",
}  # fmt: skip
FOR_EVER = "public, max-age=31536000, immutable"
COMMON = ("app", "actions", "api", "dom", "format", "live", "notify")
"""Modules that every page imports."""
MORE = {"now": ("rows",), "run": ("rows", "ansi", "plot", "events"), "history": ("rows", "plot"), "plans": (), "events": ()}
"""What the module of a page imports beside those."""


class Static:
    def __init__(self) -> None:
        place = files(__package__) / "static"
        self._files = {each.name: each.read_bytes() for each in place.iterdir() if each.name.rpartition(".")[2] in TYPES}
        self._page = (place / "page.html").read_text()
        digest = sha256()
        for name in sorted(self._files):
            digest.update(name.encode() + self._files[name])
        self.version = digest.hexdigest()[:12]

    def shell(self, page: str) -> str:
        """Return the HTML of a page. It names all modules, so that a browser does not find them one after the other."""
        wanted = (*COMMON, page, *MORE[page])
        preloads = "\n".join(f'<link rel="modulepreload" href="/static/{self.version}/{name}.js">' for name in wanted)
        return self._page.replace("{{preloads}}", preloads).replace("{{version}}", self.version)

    async def file(self, request: Request) -> Response:
        return self._answer(request.path_params["name"], request.path_params.get("version") == self.version)

    async def worker(self, _request: Request) -> Response:
        """Return the service worker. It must be above all pages that it serves, and so has no place in /static."""
        return self._answer("sw.js", False)

    def _answer(self, name: str, for_ever: bool) -> Response:
        content = self._files.get(name)
        if content is None:
            return PlainTextResponse("there is no such file\n", 404)
        headers = {"cache-control": FOR_EVER if for_ever else "no-cache"}
        return Response(content, headers=headers, media_type=TYPES[name.rpartition(".")[2]])
