"""`config`: the effective configuration, and where each value comes from."""

from ...protocol.messages import Config, ConfigReply
from ..call import Call, answers


@answers(Config)
def config(call: Call, _request: Config) -> None:
    call.reply(ConfigReply(id=call.id, settings=call.runtime.settings))
