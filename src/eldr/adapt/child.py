"""Questions answered in a process of their own, with low priority, so that no request waits for them.

`python -m eldr.adapt.child` reads a pickled question from its input and writes the answer; its parent is the
router, which sends nothing but what it made itself. It ends with the answer: no memory stays taken.
"""

import asyncio
import os
import pickle
import resource
import sys
from typing import IO

from eldr.adapt.round import Answer, Question, answer
from eldr.errors import EldrError

NICE = 10
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class ChildError(EldrError):
    """The child died; the message says how."""


async def ask(question: Question) -> Answer:
    """The answer. Raises ChildError. Cancelling stops the child."""
    with os.fdopen(os.memfd_create("eldr-adapt"), "w+b") as file:  # a router may have no disk to write to
        await asyncio.to_thread(_write, file, question)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "eldr.adapt.child"),
            stdin=file,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | ONE_THREAD,
        )
        try:
            told, errors = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    if child.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ChildError(f"the child ended with {child.returncode}: {last[:300]}")
    return await asyncio.to_thread(_loaded, told)


def _write(file: IO[bytes], question: Question) -> None:
    pickle.dump(question, file, pickle.HIGHEST_PROTOCOL)
    file.flush()
    file.seek(0)


def _loaded(told: bytes) -> Answer:
    loaded: Answer = pickle.loads(told)
    return loaded


def children_cpu_s() -> float:
    """CPU seconds of all children of this process that have ended, however they did."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Answer the question at the input."""
    os.nice(NICE)
    sys.stdout.buffer.write(pickle.dumps(answer(pickle.load(sys.stdin.buffer)), pickle.HIGHEST_PROTOCOL))


if __name__ == "__main__":
    main()
