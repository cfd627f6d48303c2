"""Read logs on a Ray cluster. Each job is a Ray task, which opens the files by their paths."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class RayExecutor(Executor):
    """An executor that runs each call as a Ray task.

    Ray has no executor class. However, a reference to the result of a task can return a future of
    ``concurrent.futures`` (Ray 2.60, ``ObjectRef.future``).
    """

    def __init__(self, **options: Any) -> None:
        import ray  # needs the extra `stallwatch[ray]`

        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False)
        self._ray, self._options = ray, options
        self._tasks: dict[Callable[..., Any], Any] = {}
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Start a call as a task. All calls to a function use the same remote function."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        task = self._tasks.get(fn)
        if task is None:
            remote = self._ray.remote(**self._options) if self._options else self._ray.remote
            task = self._tasks[fn] = remote(fn)
        future: Future[T] = task.remote(*args, **kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop accepting calls. Ray itself remains connected because other code can use the connection."""
        self._closed = True


def ray_executor(**options: Any) -> RayExecutor:
    """Return an executor for ``diagnose`` that reads logs on a Ray cluster.

    If this process is not connected to the cluster yet, the function connects in the same way as
    ``ray.init``. The options, such as ``num_cpus`` or ``resources``, are passed to ``ray.remote``.
    """
    return RayExecutor(**options)
