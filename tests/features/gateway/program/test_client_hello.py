"""The parser of ClientHello against real ones, each way to cut them, and noise."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.features.gateway.program.egress import (
    MAX_HELLO,
    ClientHello,
    MalformedHelloError,
    NotTlsError,
)


def real(name: str | None, *, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """Return what OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.maximum_version = False, newest
    context.set_alpn_protocols(["h2", "http/1.1"])
    out = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


def recut(hello: bytes, size: int) -> bytes:
    """Return the message in records of this size."""
    message = hello[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in parts)


def name_of(data: bytes, step: int) -> str | None:
    hello = ClientHello()
    for at in range(0, len(data), step):
        if hello.feed(data[at : at + step]):
            return hello.server_name()
    raise AssertionError("it is not whole")


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", ["site.example", "a.very-long.name.example", None])
def test_the_name_of_a_real_one(name: str | None, newest: ssl.TLSVersion) -> None:
    assert name_of(real(name, newest=newest), MAX_HELLO) == name


@given(record=st.integers(1, 600), step=st.integers(1, 700))
def test_however_it_is_cut(record: int, step: int) -> None:
    assert name_of(recut(real("site.example"), record), step) == "site.example"


@given(data=st.binary(max_size=200), at=st.integers(0, 250), size=st.integers(0, 4))
def test_noise_raises_nothing_else(data: bytes, at: int, size: int) -> None:
    hello = real("site.example")
    for noise in (
        data,
        b"\x16\x03\x01" + data,
        hello[:at] + data[:size] + hello[at + size :],
        recut(b"12345" + data, 7),
    ):
        parser = ClientHello()
        with suppress(NotTlsError, MalformedHelloError):
            if parser.feed(noise):
                name = parser.server_name()
                assert name is None or name.isascii()


@pytest.mark.parametrize(
    "first",
    [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"\x80\x2e\x01\x03\x01", b"\x16\x02\x00", b"\0"],
)
def test_what_is_not_tls(first: bytes) -> None:
    with pytest.raises(NotTlsError):
        ClientHello().feed(first)


def with_names(*names: bytes) -> bytes:
    """Return a hello whose list of names has these; OpenSSL makes no such."""
    entries = b"".join(b"\0" + len(name).to_bytes(2) + name for name in names)
    extension = b"\0\0" + (len(entries) + 2).to_bytes(2) + len(entries).to_bytes(2) + entries
    body = (
        b"\x03\x03"
        + bytes(32)
        + b"\0"
        + b"\0\2\x13\x01"
        + b"\1\0"
        + len(extension).to_bytes(2)
        + extension
    )
    message = b"\x01" + len(body).to_bytes(3) + body
    return b"\x16\x03\x01" + len(message).to_bytes(2) + message


def test_an_ambiguous_one_is_malformed() -> None:
    """The server could read another name than the gateway."""
    assert name_of(with_names(b"Site.example"), MAX_HELLO) == "site.example"
    twice = with_names(b"a.example", b"b.example")
    empty_record = b"\x16\x03\x01\0\0" + real("site.example")
    alert = recut(real("site.example"), 100)[:105] + b"\x15\x03\x01\0\2\2\x70"
    long = with_names(b"a" * MAX_HELLO)
    for data in (twice, empty_record, alert, long, with_names(b"\xff.example")):
        with pytest.raises(MalformedHelloError):
            name_of(data, 100)
