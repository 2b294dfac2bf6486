"""The APIs that the gateway knows, by the name that `[gateway.upstreams]` uses. Pure: bytes in,
facts out.

`base`       what a call asks for, what a reply tells, what costs more than tokens, and the
             interface of an API
`usage`      what a reply says that was used, as tokens by kind
`holding`    what a request holds: text, images, audio, video
`tokens`     how many tokens a text has, by what it consists of
`anthropic`  Anthropic Messages
`responses`  OpenAI Responses
`chat`       OpenAI Chat Completions
`gemini`     Gemini generateContent
"""

from .anthropic import ANTHROPIC
from .base import Api, ModelCall, ReplyReader, ToolUse, most_output
from .chat import CHAT
from .gemini import GEMINI
from .responses import RESPONSES

APIS: dict[str, Api] = {api.name: api for api in (ANTHROPIC, RESPONSES, CHAT, GEMINI)}

__all__ = ["APIS", "Api", "ModelCall", "ReplyReader", "ToolUse", "most_output"]
