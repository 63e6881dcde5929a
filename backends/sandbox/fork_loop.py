"""The other side of `collage.backends.sandbox.run`: the fork server, which forks children and ends them.

Terms: the *owner* is the process that calls `run_in_child`. The *fork server* is one single-threaded
helper process of the owner, without the owner's environment and, where the platform allows that,
without a network. It imports no runtime and forks a *child* for each call, in milliseconds and in a
state that no earlier task has touched; `child` has its life.

Invariants:

* Nothing outlives the owner: the fork server ends when its control socket closes or its parent changes,
  and kills all children; the kernel kills a child when the fork server dies.
* Nothing outlives its task: a child has a namespace of processes, which the kernel empties when its first
  process ends. Where that cannot be, a child leads its own session and group, which is killed when it
  ends; processes that left the group come to the fork server (child subreaper) and are killed there.
* A child's working directory is empty at the start and removed at the end.

Only the standard library is imported at the top, so that a fork server starts quickly.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

from collage.backends.sandbox import linux
from collage.backends.sandbox.child import Surroundings, live
from collage.backends.sandbox.file_view import Shown, enter
from collage.backends.sandbox.landlock import SYSTEM, confinable, interpreter_paths, start_folders
from collage.backends.sandbox.limits import Protections
from collage.backends.sandbox.seccomp import filterable
from collage.backends.sandbox.usage.control_group import ControlGroup, Groups, find_groups
from collage.backends.sandbox.user import Users, can_change_user, owned_by_child, user_for

REQUEST_BYTES = 1 << 20
OWNER_POLL_S = 0.5

_PR_SET_CHILD_SUBREAPER = 36
_ROOT = (0, 0)


@dataclass
class _ForkedChild:
    """A running child."""

    pid: int
    status: socket.socket
    work_dir: Path
    end: int  # its first process writes there how the other one ended
    user: int | None  # taken for it
    group: ControlGroup | None

    def kill(self) -> None:
        """End it, while it is not reaped yet, with all that it started."""
        if self.group is not None:
            self.group.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may not lead a group yet
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class _Platform:
    """What this machine lets a fork server give its children."""

    surroundings: Surroundings
    maps_users: bool
    users: Users | None = None
    groups: Groups | None = None
    own: tuple[int, ...] = ()  # descriptors of the fork server that no child keeps


def serve(control_fd: int, preload: Sequence[str]) -> None:
    """Run the fork server until its owner is gone."""
    control = socket.socket(fileno=control_fd)
    owner = os.getppid()
    linux.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    isolated, in_user_namespace = linux.cut_off_network()
    users = Users() if can_change_user() else None
    for name in preload:
        _import_quietly(name)
    interpreter_paths()  # asked once, known to all children
    start_folders()
    platform = _explore(users, in_user_namespace)
    groups = platform.groups = find_groups(ends_only=not platform.surroundings.own_view)
    gc.collect()
    gc.freeze()  # children share these pages until one writes
    hello = Protections(
        network=isolated,
        own_users=users is not None,
        as_root=os.geteuid() == 0,
        own_view=platform.surroundings.own_view,
        no_capabilities=os.geteuid() != 0 or platform.maps_users,
        files=confinable(),
        calls=filterable(),
        group=groups is not None,
        group_memory=groups is not None and groups.memory,
        group_processes=groups is not None and groups.processes,
    )
    control.send(json.dumps(asdict(hello)).encode())
    wake_read, wake_write = platform.own = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, _on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what an interrupt means
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children: dict[int, _ForkedChild] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        try:
            while os.getppid() == owner:
                for key, _ in selector.select(OWNER_POLL_S):
                    if key.fileobj is control:
                        if not _accept(control, children, selector, platform):
                            return
                    elif key.fileobj == wake_read:
                        with contextlib.suppress(BlockingIOError):
                            os.read(wake_read, 4096)
                    elif key.data in children:  # the owner asks to kill it, or is gone
                        children[key.data].kill()
                        selector.unregister(key.fileobj)
                _reap(children, selector, platform.users)
                _kill_orphans(children)  # one that left its parent is counted for nobody
        finally:
            for child in children.values():
                child.kill()
            while children:
                _reap(children, selector, platform.users, wait=True)


def _explore(users: Users | None, in_user_namespace: bool) -> _Platform:
    """Try what children can have, in copies of this process."""
    plain = _Platform(Surroundings(), maps_users=False, users=users)
    if not sys.platform.startswith("linux"):
        return plain
    for own_proc in (True, False):
        surroundings = Surroundings(own_view=True, own_proc=own_proc, all_mounts=in_user_namespace)
        platform = replace(plain, surroundings=surroundings)
        found = _try(platform)
        if found is not None:
            return replace(platform, maps_users=found)
    return plain


def _try(platform: _Platform) -> bool | None:
    """Whether a child could enter its view, and there own its files; None when it could not enter."""
    maps: dict[tuple[int, int], int] = {}
    if platform.users is not None:
        with contextlib.suppress(OSError):
            maps[_ROOT] = owned_by_child(_ROOT, user_for(0))
    with tempfile.TemporaryDirectory(prefix="collage-child-") as folder:
        shown = [*(Shown(path) for path in SYSTEM), Shown(str(Path(folder).parent), owner=_ROOT)]
        try:
            pid = _fork(platform)
        except OSError:
            return None
        if pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                own_proc, all_mounts = platform.surroundings.own_proc, platform.surroundings.all_mounts
                mapped = enter(shown, folder, user_maps=maps, own_proc=own_proc, all_mounts=all_mounts)
                code = 0 if mapped and maps else 2
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for number in maps.values():
        os.close(number)
    return {0: True, 2: False}.get(code)


def _fork(platform: _Platform) -> int:
    """Fork, where it can be into a new namespace of processes.

    Raises:
        OSError: the kernel refuses.
    """
    if not platform.surroundings.own_view:
        return os.fork()
    told, tell = os.pipe()
    wait, go = os.pipe()
    starter = os.fork()
    if starter == 0:
        try:
            # It holds for later children, for good: so not in the fork server itself.
            linux.unshare(linux.NEW_PIDS)
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid != 0:
            os.write(tell, str(pid).encode())
            os._exit(0)
        for number in (told, tell, go):
            os.close(number)
        # Until this process's parent is the fork server, a subreaper, and knows of it.
        if not os.read(wait, 1):
            os._exit(1)
        os.close(wait)
        return 0
    os.close(tell)
    os.close(wait)
    try:
        os.waitpid(starter, 0)
        text = os.read(told, 16)
        if not text:  # it was refused, or killed
            raise OSError(errno.EPERM, "no namespace of processes")
        with contextlib.suppress(BrokenPipeError):  # it was killed, which is seen when it is reaped
            os.write(go, b"x")
        return int(text)
    finally:
        os.close(told)
        os.close(go)


def _accept(
    control: socket.socket,
    children: dict[int, _ForkedChild],
    selector: selectors.BaseSelector,
    platform: _Platform,
) -> bool:
    """Fork one child; False when the owner is gone."""
    data, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, 3)
    if not data:
        return False
    request = json.loads(data)
    channel_fd, status_fd, log_fd = fds
    # Imported here once, a module is there in every later child.
    if request["preload"]:
        _import_quietly(request["preload"])
    status = socket.socket(fileno=status_fd)
    work_dir = Path(tempfile.mkdtemp(prefix="collage-child-"))
    users, user, taken = platform.users, request["user"], None
    if user is None and users is not None:
        user = request["user"] = taken = users.take()
    maps: dict[tuple[int, int], int] = {}
    end, worker_end = os.pipe()
    group, group_fd = None, None
    try:
        if platform.groups is not None:
            group = platform.groups.make(request["memory_bytes"], request["processes"])
            group_fd = group.open()
        if user is not None:
            os.chown(work_dir, user, user)
            if platform.maps_users and users is not None:
                maps = users.maps(user, {_ROOT, *(tuple(entry["owner"]) for entry in request["given"])})
        pid = _fork(platform)
    except OSError as error:
        # A process on the way there was killed, for one: that costs this child only.
        os.write(log_fd, f"no child could be started: {error}\n".encode())
        status.close()
        for number in (
            channel_fd,
            log_fd,
            end,
            worker_end,
            *([group_fd] if group_fd is not None else []),
        ):
            os.close(number)
        if group is not None:
            group.remove()
        shutil.rmtree(work_dir, ignore_errors=True)
        if users is not None and taken is not None:
            users.give_back(taken)
        return True
    if pid == 0:
        os.close(end)
        selector.close()
        control.close()
        signal.set_wakeup_fd(-1)
        for number in platform.own:
            os.close(number)
        status.close()
        for other in children.values():
            other.status.close()
            os.close(other.end)
        if users is not None:
            users.close_others(user)
        live(
            request,
            replace(platform.surroundings, user_maps=maps),
            channel_fd=channel_fd,
            log_fd=log_fd,
            end_fd=worker_end,
            group_fd=group_fd,
            work_dir=work_dir,
        )
    for number in (channel_fd, log_fd, worker_end, *([group_fd] if group_fd is not None else [])):
        os.close(number)
    with contextlib.suppress(OSError):  # the owner may be gone, which is seen below
        status.send(json.dumps({"work_dir": str(work_dir), "pid": pid}).encode())
    children[pid] = _ForkedChild(pid, status, work_dir, end, taken, group)
    selector.register(status, selectors.EVENT_READ, pid)
    return True


def _reap(
    children: dict[int, _ForkedChild],
    selector: selectors.BaseSelector,
    users: Users | None,
    wait: bool = False,
) -> None:
    """Reap ended children, and kill what they started."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        wait = False
        child = children.pop(pid, None)
        if child is None:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        _kill_orphans(children)
        kills = 0
        if child.group is not None:
            kills = child.group.memory_kills()
            child.group.remove()
        shutil.rmtree(child.work_dir, ignore_errors=True)
        if users is not None and child.user is not None:
            users.give_back(child.user)
        code = _ended_with(child, os.waitstatus_to_exitcode(status))
        with contextlib.suppress(OSError):
            child.status.send(json.dumps({"exit": code, "memory_kills": kills}).encode())
        with contextlib.suppress(KeyError):
            selector.unregister(child.status)
        child.status.close()


def _ended_with(child: _ForkedChild, code: int) -> int:
    """How the worker ended, where it told, else how the first process did."""
    os.set_blocking(child.end, False)
    try:
        return int(os.read(child.end, 16))
    except (OSError, ValueError):
        return code
    finally:
        os.close(child.end)


def _kill_orphans(children: Mapping[int, _ForkedChild]) -> None:
    """Kill every descendant that the kernel gave to this process because its parent died."""
    for _ in range(100):  # each round brings the children of those killed in the round before
        orphans = [pid for pid in _own_children() if pid not in children]
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _own_children() -> Iterator[int]:
    own = os.getpid()
    with contextlib.suppress(OSError):  # only kernels built with it have this file
        yield from map(int, Path(f"/proc/self/task/{own}/children").read_text(encoding="utf-8").split())
        return
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The second field is the command in parentheses, which may contain spaces.
            after_name = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(after_name[1]) == own:
                yield int(entry.name)


def _import_quietly(name: str) -> None:
    """Import a module, and call a function of it: `module` or `module:function`."""
    # The child reports a module that cannot be imported.
    with contextlib.suppress(Exception):
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Does nothing: the wakeup descriptor is what ends the wait."""
