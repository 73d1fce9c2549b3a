"""Any bytes at all from a client: the router answers or closes in time, never with a 500, and works on."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.inputs import (
    ANY_BYTES,
    BODIES,
    BODY,
    HEADERS,
    PATHS,
    chunked,
    mangled,
    nearly_chunked,
    request,
)
from fuzz.live import Router
from support.raw import status_of
from support.stack import right_text

A_FEW = settings(max_examples=settings.default.max_examples // 4)
"""Of the examples of the other tests, since the router may take a while to turn a request away."""
FEWER = settings(max_examples=settings.default.max_examples // 8)


def no_500(answer: bytes) -> None:
    assert status_of(answer) != 500, answer
    assert b"Traceback" not in answer


@A_FEW
@given(ANY_BYTES)
def test_any_bytes(router: Router, data: bytes) -> None:
    no_500(router.send(data))
    router.check_works()


@A_FEW
@given(mangled())
def test_a_request_with_a_few_wrong_bytes(router: Router, data: bytes) -> None:
    no_500(router.send(data))
    router.check_works()


@A_FEW
@given(st.sampled_from(PATHS[:-1]), BODIES)
def test_any_json_object(router: Router, path: str, body: dict[str, Any]) -> None:
    answer = router.send(request(path, body))
    no_500(answer)
    assert status_of(answer) in (200, 400, 404, 422), answer


@A_FEW
@given(HEADERS)
def test_any_headers_pass_to_the_engine_as_they_are_or_are_refused(
    router: Router, headers: list[tuple[bytes, bytes]]
) -> None:
    router.prefill.received.clear()
    answer = router.send(request(PATHS[0], BODY, *(name + b": " + value for name, value in headers)))
    no_500(answer)
    if status_of(answer) == 200:
        (received,) = router.prefill.received
        connection = b",".join(value for name, value in headers if name == b"Connection").lower()
        for name, value in headers:
            if name.startswith(b"X-F-") and name.lower() not in connection:
                text = value.decode("utf-8", "surrogateescape").strip(" \t")
                assert text in received.headers.getall(name.decode())


@A_FEW
@given(chunked())
def test_a_body_in_any_chunks_is_one_body(router: Router, data: bytes) -> None:
    answer = router.send(data) or router.send(data)  # a busy machine may miss the time limits
    assert status_of(answer) == 200, answer
    assert right_text(BODY, 2).encode() in answer


@A_FEW
@given(nearly_chunked())
def test_chunks_with_a_few_wrong_bytes(router: Router, data: bytes) -> None:
    no_500(router.send(data))
    router.check_works()


@FEWER
@given(ANY_BYTES | mangled() | nearly_chunked() | BODIES.map(lambda body: request(PATHS[0], body)))
def test_several_processes_take_anything_too(processes: Router, data: bytes) -> None:
    no_500(processes.send(data))
    processes.check_works()
