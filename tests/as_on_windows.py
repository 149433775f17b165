"""What Python has on Windows, for a process on another system: a script of test_package.py.

It hides from weft, and from weft alone, the modules and names that Python has on POSIX systems
only; then it imports weft's modules and trains. How the file system and processes of Windows behave
it cannot show.
"""

from __future__ import annotations

import builtins
import importlib
import pathlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

MODULES = {"fcntl", "grp", "pwd", "resource", "termios"}
NAMES: dict[str, set[str]] = {
    "mmap": {"MADV_DONTNEED"},
    "multiprocessing.context": {"ForkContext", "ForkServerContext"},
    "os": {
        *("O_DIRECTORY", "WNOHANG", "fork", "geteuid", "getpgid", "getuid", "killpg", "nice"),
        *("posix_fadvise", "pread", "pwrite", "sched_getaffinity", "setsid", "statvfs", "sysconf"),
        *("sysconf_names", "uname", "wait4"),
    },
    "signal": {
        *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP"),
        *("SIGTSTP", "SIGUSR1", "SIGUSR2", "alarm", "pthread_sigmask", "setitimer", "sigwait"),
    },
    "socket": {"AF_UNIX"},
    "sys": {"getdlopenflags"},
}
VALUES = {"os": {"name": "nt"}, "sys": {"platform": "win32"}}
# Kernels for GPUs are for Linux; the others need packages that take seconds to load.
LEFT_OUT = ("weft.kernels.triton", "weft.integrations.")

real_import, real_read = builtins.__import__, pathlib.Path.read_text


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002  (__import__ takes these by name)
    locals: Mapping[str, Any] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    found = real_import(name, globals, locals, fromlist or (), level)
    if level or not str((globals or {}).get("__name__")).startswith("weft"):
        return found
    if name in MODULES:
        raise ModuleNotFoundError(f"there is no {name} on Windows", name=name)
    whole = sys.modules[name] if fromlist else found
    return _without(whole) if whole.__name__ in NAMES else found


def _without(module: ModuleType) -> ModuleType:
    name = module.__name__
    there = {key: value for key, value in vars(module).items() if key not in NAMES[name]}
    found = ModuleType(name)
    vars(found).update(there, **VALUES.get(name, {}))
    return found


def _read_text(path: pathlib.Path, *args: Any, **options: Any) -> str:
    if path.parts[1:2] in (("proc",), ("sys",)):
        raise FileNotFoundError(path)
    return real_read(path, *args, **options)


def main() -> None:
    import weft

    root = pathlib.Path(weft.__file__).parent
    for file in sorted(root.rglob("[!_]*.py")):
        name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
        if not name.startswith(LEFT_OUT):
            importlib.import_module(name)

    import torch

    from weft.training.hardware import hardware, peak_memory

    batches = weft.loader(weft.open("mine.extxyz"), policy="packed", batch_size=4)
    model = weft.SchNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        error = model(batch) - batch.graphs["energy"]
        return (error**2)[batch.graph_mask].mean()

    result = weft.fit(model, optimizer, batches, loss, epochs=2, run="runs/a")
    assert peak_memory() == 0.0
    assert hardware()["cores"] >= 1
    sys.stdout.write(f"{result.epochs} epochs {pathlib.Path('runs/a/last.pt').exists()}\n")


if __name__ == "__main__":
    builtins.__import__, pathlib.Path.read_text = _import, _read_text  # type: ignore[assignment]
    main()
