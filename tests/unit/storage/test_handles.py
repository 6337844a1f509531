"""Files kept open fit into what the process may have, and are given up when others need them."""

from __future__ import annotations

import errno
import os

import pytest

from stillrun_store.storage import OsFiles
from stillrun_store.storage.errors import NoDescriptor
from stillrun_store.storage.handles import MAX_OPEN_FILES, MIN_OPEN_FILES, Handles


class FewFiles(OsFiles):
    """`may_be_open` of those it opened may be open at once."""

    def __init__(self, max_files, may_be_open=1_000):
        self.max_files, self.may_be_open, self.open = max_files, may_be_open, set()

    def max_open_files(self):
        return self.max_files

    def open_rw(self, path):
        if len(self.open) >= self.may_be_open:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fd = super().open_rw(path)
        self.open.add(fd)
        return fd

    def close(self, fd):
        self.open.remove(fd)
        super().close(fd)


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / f"{number}" for number in range(100)]
    for path in made:
        path.touch()
    return made


@pytest.mark.parametrize(
    ("may_have", "keeps"), [(4, MIN_OPEN_FILES), (64, 32), (256, 128), (1 << 30, MAX_OPEN_FILES)]
)
def test_half_of_what_the_process_may_have_is_kept_open(paths, may_have, keeps):
    files = FewFiles(may_have)
    handles = Handles(files)
    for path in paths:
        handles.give(handles.take(path))
    assert len(files.open) == min(keeps, len(paths))
    handles.close()
    assert not files.open


def test_files_that_nobody_uses_are_closed_for_one_that_is_needed(paths):
    files = FewFiles(1_000, may_be_open=10)
    handles = Handles(files)
    used = handles.take(paths[0])
    for path in paths[1:]:
        handles.give(handles.take(path))
    assert used.fd in files.open and os.pread(used.fd, 1, 0) == b""
    handles.give(used)


def test_where_all_are_in_use_one_more_is_refused_and_none_is_lost(paths):
    files = FewFiles(1_000, may_be_open=10)
    handles = Handles(files)
    used = [handles.take(path) for path in paths[:10]]
    with pytest.raises(NoDescriptor, match="too many open files"):
        handles.take(paths[10])
    assert {handle.fd for handle in used} == files.open
    handles.give(used[0])
    handles.give(handles.take(paths[10]))
