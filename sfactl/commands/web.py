from importlib.util import find_spec

from ..app import OverFleet, app
from ..connecting.connection import unanswered_by
from ..connecting.inside import inside_run
from ..exits import ExitCode, ExtraMissing, Quit
from ..options.spreading import spread
from ..web.options import WebOptions


@app.command(cls=OverFleet)
@spread(WebOptions)
def web(wanted: WebOptions) -> int:
    """Show runs in a browser: look, steer and plot, also from a telephone.

    Prints a link on loopback. It logs one browser in, once, for 30 days; --link prints one for
    another device, with a code that a telephone reads. The console acts with your rights and ends
    with Ctrl-C; the runs go on. To keep it running: sfad install --web. With --fleet, it shows
    and steers the runs of all nodes. Needs the extra web, as in: pip install '.[web]' in the
    checkout.

    From another machine: forward the port (ssh -L 8477:127.0.0.1:8477 HOST), or listen
    elsewhere with --listen, and then with a certificate, or behind a proxy that has one
    (docs/console.md).

    Exit codes: 0 ended by Ctrl-C, SIGTERM or SIGHUP; 2 a wrong option, a port that is taken, or
    the extra is not installed; 69 the daemon cannot be reached; 77 inside a run.
    """
    if not wanted.check and (why := inside_run()) is not None:
        # --link of the person would offer the run's console, and that of the run the person's
        raise Quit(
            ExitCode.NOT_PERMITTED,
            f"a console starts outside runs only, and this process is inside one ({why})",
        )
    if any(find_spec(each) is None for each in ("starlette", "hypercorn", "segno")):
        raise ExtraMissing("web", "web")
    # Imported here because they take a third of a second, and are an extra.
    if wanted.link:
        from ..web import addresses

        return addresses.print_link(wanted)
    from ..web import serving
    from ..web.source import Source

    place = serving.place_of(wanted)
    if wanted.check:
        serving.tls_of(place)
        return ExitCode.DONE
    # an error of the daemon belongs here, not into the browser
    code = serving.serve(Source(wanted.socket), place, opens=wanted.opens)
    unanswered_by.clear()  # pages have shown that
    return code
