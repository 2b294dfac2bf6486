"""`agents`: the registered agents."""

from ...protocol.messages import AgentList, Agents
from ..call import Call, answers


@answers(Agents)
def agents(call: Call, _request: Agents) -> None:
    call.reply(AgentList(id=call.id, agents=[entry.info for entry in call.runtime.agents.values()]))
