"""Passing a worker's answer to the client, whole or as a stream (eldr.proxy.stream)."""

from eldr.metrics.prometheus import RouterMetrics
from eldr.pool import Worker
from eldr.proxy import headers
from eldr.proxy.call import Call
from eldr.proxy.events import read_answer
from eldr.proxy.response import Response
from eldr.proxy.stream import RefusalError as RefusalError
from eldr.proxy.stream import Stream
from eldr.proxy.worker_answer import Answer


async def checked(answer: Answer) -> None:
    """Raise RefusalError for an answer that is not of status 200."""
    if answer.status != 200:
        raise RefusalError(answer.status, await answer.read(), headers.to_client(answer.headers))


async def relay(call: Call, worker: Worker, answer: Answer, metrics: RouterMetrics) -> Response:
    """Give the client the worker's answer. Raises RefusalError and BrokenOffError while nothing was sent."""
    await checked(answer)
    if answer.content_type == "text/event-stream":
        return await Stream(call, worker, answer, metrics).run()
    whole = read_answer(await answer.read(), call.cached_tokens)
    call.output_tokens = whole.output_tokens
    if call.prompt_tokens is None:
        call.prompt_tokens = whole.prompt_tokens
    passed = headers.to_client(answer.headers)
    passed.extend(call.answer_headers())
    return Response(200, whole.body, passed)


async def pass_on(call: Call, answer: Answer) -> Response:
    """The answer of a worker that decoded nothing, as it is."""
    body = await answer.read()
    passed = headers.to_client(answer.headers)
    passed.extend(call.answer_headers())
    return Response(200, body, passed)
