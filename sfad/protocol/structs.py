"""What the protocol's declarations are made of: msgspec's structs, or in `sfactl` those of `light`.

Both read the same declarations. A program chooses the light ones by importing `light` before any declaration. The modules with
declarations import no `typing`, `enum` or `datetime` themselves: to import these takes as long as to start Python.
"""

import sys

TYPE_CHECKING = False
LIGHT = f"{__package__}.light" in sys.modules

if TYPE_CHECKING or not LIGHT:
    from datetime import datetime as datetime
    from enum import StrEnum as StrEnum
    from typing import Any as Any
    from typing import ClassVar as ClassVar
    from typing import Literal as Literal
    from typing import Protocol as Protocol
    from typing import TypedDict as TypedDict

    from msgspec import UNSET as UNSET
    from msgspec import Struct as Struct
    from msgspec import UnsetType as UnsetType
    from msgspec.structs import asdict as asdict
    from msgspec.structs import replace as replace

    from .encoding import pack as pack
    from .encoding import reader as reader
    from .encoding import tag as tag
    from .encoding import to_json as to_json
else:
    from .light import *  # noqa: F403
