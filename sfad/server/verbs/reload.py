"""`reload`: read the config again."""

from ...config import ConfigError
from ...protocol.messages import Reload, Reloaded
from ..call import Call, answers
from ..checks import bad_request


@answers(Reload)
def reload(call: Call, _request: Reload) -> None:
    try:
        loaded, changed = call.runtime.reload()
    except ConfigError as error:
        raise bad_request(f"nothing was changed: {error}") from None
    call.reply(Reloaded(id=call.id, files=[str(path) for path in loaded.files], changed=changed))
