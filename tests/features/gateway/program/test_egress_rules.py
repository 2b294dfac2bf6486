"""Names and addresses that a run may reach, and those that it may not."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.features.gateway.program.egress_rules import (
    MODEL_APIS,
    EgressRefusedError,
    Way,
    check_address,
    is_model_api,
    plain,
    way,
)
from sfad.protocol.texts.destinations import Destination, destination, host_of
from tests.together import together

UPSTREAM = ("llm.example.com", 443)
V4 = "8.8.8.8"


def refused(host: str, port: int, *listed: str, address: str = V4) -> str:
    """Return why a run with this list may not go there, `""` if it may."""
    try:
        found = way(host_of(host), port, [destination(text) for text in listed], {UPSTREAM})
        check_address(
            found, ipaddress.ip_address(address), {(ipaddress.ip_address("9.9.9.9"), 443)}
        )
    except EgressRefusedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("*", "*", None),
        ("Site.example.", "site.example", None),
        ("site.example:8443", "site.example", 8443),
        ("*.Example.com", "*.example.com", None),
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:80", "::1", 80),
        ("[0:0::1]", "::1", None),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", None),
    ],
)
def test_an_entry(text: str, host: str, port: int | None) -> None:
    assert destination(text) == Destination(host, port)


@together(
    "text",
    ["", ".", "a..b", "http://a", "a/b", "a:0", "a:65536", "a:", "a b", "*a", "a.*",
     "bücher.example", "127.1", "0x7f000001", "::1", "2130706433", "0177.0.0.1", "[1.2.3.4]", "a@b",
     "-a", "a%62", "256.1.1.1", "*:*"],
)  # fmt: skip
def test_no_entry(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST"):
        destination(text)


def test_what_a_list_means() -> None:
    for host, port, listed in (
        ("site.example", 443, "site.example"), ("Site.EXAMPLE.", 80, "site.example"),
        ("a.b.example.com", 443, "*.example.com"), ("site.example", 443, "*"),
        ("site.example", 8080, "site.example:8080"), ("a.example", 8080, "*:8080"),
        ("8.8.8.8", 443, "8.8.8.8"),
    ):  # fmt: skip
        assert not refused(host, port, listed), (host, listed)
    for host, port, listed, why in (
        ("evilsite.example", 443, "site.example", "not in"),
        ("example.com", 443, "*.example.com", "not in"),
        ("badexample.com", 443, "*.example.com", "not in"),
        ("site.example", 22, "site.example", "port 22"), ("a.b", 8080, "*", "port 8080"),
        ("site.example", 443, "site.example:8080", "port 443"), ("8.8.8.8", 443, "*", "name it"),
        ("[2001:4860::1]", 443, "*", "name it"),
    ):  # fmt: skip
        assert why in refused(host, port, listed), (host, listed)
    assert "no --egress" in refused("site.example", 443)


HOSTS = (
    "api.anthropic.com", "API.Anthropic.com.", "api.openai.com", "eu.api.openai.com", "chatgpt.com",
    "ab.chatgpt.com", "generativelanguage.googleapis.com", "us-east5-aiplatform.googleapis.com",
    "aiplatform.eu.rep.googleapis.com", "bedrock-runtime.eu-west-1.amazonaws.com",
    "vpce-1.bedrock-runtime.us-east-1.vpce.amazonaws.com", "x.openai.azure.com", "openrouter.ai",
    "api.groq.com", "api.deepseek.com", "api.x.ai", "api.mistral.ai", "api.githubcopilot.com",
    "api.together.xyz",
)  # fmt: skip
OTHERS = (
    "github.com", "storage.googleapis.com", "s3.eu-west-1.amazonaws.com", "docs.mistral.ai",
    "anthropic.com", "openai.com", "x.ai", "api.anthropic.com.example",
)  # fmt: skip


def test_apis_of_models() -> None:
    """They are refused whatever the list says, at any port."""
    for host in HOSTS:
        for listed in ("*", host, "*:8443", f"{host.rstrip('.')}:8443"):
            for port in (443, 8443):
                assert "API of a model" in refused(host, port, listed), host
    assert not [host for host in OTHERS if is_model_api(host)]
    assert "API of a model" in refused(*UPSTREAM, "*", "llm.example.com")
    assert not refused("llm.example.com", 80, "*")
    assert all(pattern == pattern.lower() and "." in pattern for pattern in MODEL_APIS)


def test_an_alias_of_a_model() -> None:
    """It is refused by its address, unless a person has named it: a company's services can share
    one."""
    for address in ("9.9.9.9", "::ffff:9.9.9.9", "64:ff9b::909:909"):
        assert "model" in refused("alias.example", 443, "*", address=address)
        assert not refused("alias.example", 443, "alias.example", address=address)
    assert not refused("alias.example", 80, "*", address="9.9.9.9")


INTERNAL = ("127.0.0.1", "127.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
            "100.64.0.1", "::1", "fc00::1", "fd00:ec2::254")  # fmt: skip
NEVER = ("169.254.169.254", "0.1.2.3", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1",
         "198.18.0.1", "192.0.0.1", "fe80::1", "fec0::1", "ff02::1", "::", "2001:db8::1", "2001::1",
         "64:ff9b:1::1", "::ffff:0:127.0.0.1", "100::1")  # fmt: skip
V4_IN_V6 = ("::ffff:{}", "64:ff9b::{}", "::{}")


def spellings(address: str) -> list[str]:
    """Return an address, and those of IPv6 that lead to it."""
    if ":" in address:
        return [address]
    number = int(ipaddress.IPv4Address(address))
    six_to_four = f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1"
    return [address, six_to_four, *(form.format(address) for form in V4_IN_V6)]


@together("address", [*INTERNAL, *NEVER])
def test_addresses_that_are_not_of_the_internet(address: str) -> None:
    for spelled in spellings(address):
        assert "not one of the internet" in refused("a.example", 443, "*", address=spelled), spelled
        assert "not one of the internet" in refused("a.example", 443, "*.example", address=spelled)
        assert bool(refused("a.example", 443, "a.example", address=spelled)) == (
            address in NEVER
        ), spelled
    host = f"[{address}]" if ":" in address else address
    assert not refused(host, 443, host, address=address), "the address itself is named"


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_of_the_internet(address: str) -> None:
    assert not refused("a.example", 443, "*", address=address)


@given(st.ip_addresses(v=6), st.booleans())
def test_any_address_of_ipv6(address: ipaddress.IPv6Address, named: bool) -> None:
    """What is allowed for a pattern is of the internet by Python's tables too, and what leads to
    IPv4 is judged as that."""
    try:
        check_address(Way("a.example", 443, named), address, ())
    except EgressRefusedError:
        return
    found = plain(address)
    assert found.is_global or named
    assert not any((found.is_link_local, found.is_multicast, found.is_unspecified))


@given(st.ip_addresses(v=4).filter(lambda address: int(address) > 1))
def test_any_address_of_ipv4_in_each_spelling(address: ipaddress.IPv4Address) -> None:
    assert {plain(ipaddress.ip_address(each)) for each in spellings(str(address))} == {address}


@given(st.text(max_size=30))
def test_any_text_as_a_host(text: str) -> None:
    """There is one spelling of each."""
    try:
        host = host_of(text)
    except ValueError:
        return
    assert host == host.lower()
    assert host_of(f"[{host}]" if ":" in host else host) == host
