"""What a client does with frames: it writes requests, and reads replies of the classes that the program has imported."""

from .requests.base import Reply
from .requests.base import pack_message as pack_message
from .structs import LIGHT, reader

TYPE_CHECKING = False
if TYPE_CHECKING or not LIGHT:
    from .messages import unpack_reply as unpack_reply  # msgspec reads replies only of the classes that it was told
else:
    unpack_reply = reader(Reply)
