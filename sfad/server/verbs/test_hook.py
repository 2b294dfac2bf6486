"""`test_hook`: execute a hook of the config for an invented event."""

from ...hooks.processes import OUTPUT, HookResult
from ...protocol.messages import HookTested, TryHook
from ...protocol.sanitise import clean
from ..call import Call, answers
from ..checks import bad_request, check_most, unavailable


@answers(TryHook)
def test_hook(call: Call, request: TryHook) -> None:
    hooking = call.runtime.hooking
    check_most("characters of an event's type", len(request.event), 64)
    if request.name not in hooking.events.names:
        known = ", ".join(hooking.events.names) or "none"
        raise bad_request(f"no hook is called {request.name[:80]!r}; in the config: {known}")
    types = hooking.events.types_of(request.name)
    event = request.event or ("run_failed" if "run_failed" in types else types[0])
    if event not in types:
        raise bad_request(f"{event!r} does not start hook '{request.name}'; its 'on' matches: {', '.join(types)}")

    async def execute() -> HookResult:
        result = await hooking.events.test(request.name, hooking.test_event(event))
        if result is None:
            raise unavailable(f"hook '{request.name}' is being tested by several clients; try again later")
        return result

    def reply(result: HookResult) -> HookTested:
        output = clean(result.output)[-OUTPUT:]
        return HookTested(id=call.id, how=result.how, ok=result.ok, output=output, elapsed_s=result.elapsed_s)

    call.later(execute, reply)
