"""Which hosts a run in a network of its own may reach: decided by the name it asks for, then by the
address that is found.

The list of a run says yes. Two things stand against it: APIs of models, which lead through the
gateway, and addresses that are not of the internet, because a name's owner can have it lead
anywhere.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct

from ....protocol.texts.destinations import PORTS, Destination

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MODEL_APIS = (
    "api.anthropic.com", "api.openai.com", "*.api.openai.com", "chatgpt.com", "*.chatgpt.com",
    # Google; the third is that of Gemini CLI with a login
    "generativelanguage.googleapis.com", "*aiplatform*.googleapis.com",
    "cloudcode-pa.googleapis.com",
    # Amazon, also at the endpoints of a private network
    "*bedrock*.amazonaws.com", "bedrock*.api.aws", "runtime.sagemaker.*.amazonaws.com",
    # Microsoft, GitHub
    "*.openai.azure.com", "*.azure-api.net", "*.cognitiveservices.azure.com",
    "*.services.ai.azure.com", "*.inference.ai.azure.com", "models.github.ai",
    "*.githubcopilot.com", "copilot-proxy.githubusercontent.com",
    # others
    "*.ai.cloudflare.com", "*.api.x.ai", "*.azuredatabricks.net", "*.cloud.databricks.com",
    "*.endpoints.huggingface.cloud", "*.gcp.databricks.com", "*.kepler.ai.cloud.ovh.net",
    "*.modal.direct", "*.modal.run", "*.openrouter.ai", "ai-gateway.vercel.sh", "api*.cursor.*",
    "api*.elevenlabs.io", "api-inference.huggingface.co", "api.arcee.ai", "api.avian.io",
    "api.cerebras.ai", "api.cloudflare.com", "api.cohere.ai", "api.cohere.com", "api.deepinfra.com",
    "api.deepseek.com", "api.doubleword.ai", "api.fireworks.ai", "api.groq.com",
    "api.hyperbolic.xyz", "api.meta.ai", "api.minimax.*", "api.minimaxi.com", "api.mistral.ai",
    "api.moonshot.*", "api.novita.ai", "api.perplexity.ai", "api.quicksilverpro.io",
    "api.replicate.com", "api.sambanova.ai", "api.together.ai", "api.together.xyz",
    "api.typesafe.ai", "api.voyageai.com", "api.x.ai", "api.z.ai", "codestral.mistral.ai",
    "dashscope*.aliyuncs.com", "inference.baseten.co", "integrate.api.nvidia.com", "ollama.com",
    "open.bigmodel.cn", "opencode.ai", "openrouter.ai", "router.huggingface.co",
    # the outer name of any site of Cloudflare's in Encrypted Client Hello
    "cloudflare-ech.com",
)  # fmt: skip
"""APIs of models, and proxies of such. Beside these, those of the gateway's upstreams."""
OWN_ADDRESSES = ("api.anthropic.com",)
"""Of these, the ones at whose addresses nothing else is. Others share theirs, as all of Google's
do."""

_INTERNAL = tuple(
    map(
        ipaddress.ip_network,
        (
            "127.0.0.0/8",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "::1/128",
            "fc00::/7",
        ),
    )
)
"""What a name that is in the list may lead to. Link-local addresses are not among it:
169.254.169.254 gives a machine's credentials to all of its processes."""
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
_EMBEDDING = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
"""Of addresses that end with one of IPv4: NAT64 (RFC 6052), and the compatible ones (RFC 4291,
section 2.5.5.1)."""


class EgressRefusedError(Exception):
    """A run may not reach a host. The text says why."""


class Way(Struct, frozen=True):
    """A host that the list of a run has."""

    host: str
    port: int
    named: bool
    """By its name or address, not by a pattern."""

    @property
    def literal(self) -> Address | None:
        """The address that stands in place of a name."""
        return literal(self.host)


def literal(host: str) -> Address | None:
    try:
        return plain(ipaddress.ip_address(host))
    except ValueError:
        return None


def plain(address: Address) -> Address:
    """Return the IPv4 address that packets to an IPv6 address go to, where one is in it."""
    if (
        not isinstance(address, ipaddress.IPv6Address)
        or address.is_loopback
        or address.is_unspecified
    ):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is None and any(address in network for network in _EMBEDDING):
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return embedded or address


def is_private(address: Address) -> bool:
    """Return whether an address is of this machine, or of a private network."""
    return any(plain(address) in network for network in _INTERNAL)


def is_model_api(host: str) -> bool:
    return any(fnmatchcase(host, pattern) for pattern in MODEL_APIS)


def way(
    host: str, port: int, listed: Sequence[Destination], upstreams: Iterable[tuple[str, int]]
) -> Way:
    """Return the way to a host, in the spelling of `host_of`. `upstreams`: hosts and ports. Raises
    `EgressRefusedError`."""
    if not listed:
        raise EgressRefusedError("the run has no --egress, so it reaches nothing but its model")
    if is_model_api(host) or (str(literal(host) or host), port) in upstreams:
        raise EgressRefusedError(
            "it is the API of a model, which a run reaches by the gateway's own address only"
        )
    found = {_matched(host, port, each) for each in listed}
    if not found & {"name", "pattern"}:
        why = (
            f"the run's --egress has it, but not port {port}"
            if "port" in found
            else "it is not in the run's --egress"
        )
        raise EgressRefusedError(why)
    if "name" not in found and literal(host) is not None:
        raise EgressRefusedError(
            "it is an address, which no pattern of --egress means: name it there"
        )
    return Way(host, port, "name" in found)


def _matched(host: str, port: int, entry: Destination) -> Literal["name", "pattern", "port"] | None:
    suffix = entry.host[1:] if entry.host.startswith("*") else None
    address = literal(host)
    named = host == entry.host or (address is not None and address == literal(entry.host))
    if not named and (suffix is None or not host.endswith(suffix)):
        return None
    if port not in ((entry.port,) if entry.port is not None else PORTS):
        return "port"
    return "name" if named else "pattern"


def check_address(way: Way, address: Address, models: Iterable[tuple[Address, int]]) -> None:
    """Raise `EgressRefusedError` for an address to which a way may not lead. `models`: where APIs
    of models are."""
    if way.literal is not None:
        return  # it is named
    address = plain(address)
    if not way.named and (address, way.port) in models:
        raise EgressRefusedError(f"its address {address} is that of a model's API")
    if not _is_of_internet(address) and not (
        way.named and any(address in network for network in _INTERNAL)
    ):
        needed = "its name" if any(address in network for network in _INTERNAL) else "that address"
        raise EgressRefusedError(
            f"its address {address} is not one of the internet; "
            f"--egress would have to name {needed}"
        )


def _is_of_internet(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    return address.is_global and not address.is_multicast
